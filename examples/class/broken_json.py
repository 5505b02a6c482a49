"""Hands in half a file, as a broken upload leaves it."""

import nbformat

from rltokens.course.example_class import answer_all


def hand_in(notebook, course):
    answer_all(notebook, course)
    text = nbformat.writes(notebook).encode()
    return text[: len(text) // 2]
