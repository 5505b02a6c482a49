"""Deletes the cell in which the first answer goes."""

from rltokens.course.example_class import answer_all, delete_cell


def hand_in(notebook, course):
    answer_all(notebook, course)
    delete_cell(notebook, "log_softmax")
    return notebook
