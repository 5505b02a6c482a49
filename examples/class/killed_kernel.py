"""Answers everything but one exercise, which kills Python as too large an array would."""

from rltokens.course.example_class import answer, answer_all

KILL = """\
import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)"""


def hand_in(notebook, course):
    answer_all(notebook, course)
    stub = course.exercises["sequence_distribution"].stub
    answer(notebook, course, "sequence_distribution", stub.replace("raise NotImplementedError", KILL))
    return notebook
