"""Hands the notebook in as it was released."""


def hand_in(notebook, course):
    return notebook
