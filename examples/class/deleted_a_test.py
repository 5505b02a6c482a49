"""Answers everything, and deletes two cells that are not the learner's to delete."""

from rltokens.course.example_class import answer_all, delete_cell


def hand_in(notebook, course):
    answer_all(notebook, course)
    delete_cell(notebook, "token_logprobs-checks")
    delete_cell(notebook, "token_logprobs-graded")
    return notebook
