"""Answers everything, and leaves a copy of an answer and of a graded cell behind."""

import copy

from rltokens.course.example_class import answer_all
from rltokens.course.verdicts import find_cell


def hand_in(notebook, course):
    answer_all(notebook, course)
    for name in ("log_softmax", "log_softmax-graded"):
        cell = find_cell(notebook, name)
        if cell is not None:
            twin = copy.deepcopy(cell)
            twin.id = f"{name}-copy"
            notebook.cells.insert(notebook.cells.index(cell) + 1, twin)
    return notebook
