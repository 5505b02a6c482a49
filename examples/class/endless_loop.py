"""Answers everything but one exercise, whose loop never ends."""

from rltokens.course.example_class import answer, answer_all


def hand_in(notebook, course):
    answer_all(notebook, course)
    stub = course.exercises["importance_ratios"].stub
    loop = stub.replace("raise NotImplementedError", "while True:\n        pass")
    answer(notebook, course, "importance_ratios", loop)
    return notebook
