"""Answers everything as the course does."""

from rltokens.course.example_class import answer_all


def hand_in(notebook, course):
    answer_all(notebook, course)
    return notebook
