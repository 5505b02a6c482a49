"""Answers everything, and every function warns and writes to stderr."""

from rltokens.course.example_class import answer_all

WARNS = """\
import functools
import sys
import warnings


def warns(function):
    @functools.wraps(function)
    def warned(*arguments, **named):
        warnings.warn("an honest warning", RuntimeWarning)
        print("still computing", file=sys.stderr)
        return function(*arguments, **named)

    return warned


@warns
"""


def hand_in(notebook, course):
    answer_all(notebook, course, above=WARNS)
    return notebook
