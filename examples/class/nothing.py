"""Is on the list of the class and hands nothing in."""


def hand_in(notebook, course):
    return None
