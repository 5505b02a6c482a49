"""What went wrong with an exercise, in words: read from a notebook that was run for grading.

The lines are those that `grade` in `rltokens.checking` prints; a test keeps the two together.
"""

import re

FAILED = re.compile(r"  FAILED  (\w+): (.*)")
MEND = re.compile(r"  (Mend .+)")
OTHER = re.compile(r"  passed  |  Mend |[\d.]+ of [\d.]+ points$")


def failures_in(text, exercise):
    """(check, message) for each check that the printed verdict on the exercise calls FAILED."""
    failures, goes_on = [], False
    for line in _verdict(text, exercise):
        if failed := FAILED.match(line):
            failures.append(failed.groups())
            goes_on = True
        elif OTHER.match(line):
            goes_on = False
        elif goes_on:  # an exception's message may have several lines
            check, message = failures[-1]
            failures[-1] = (check, f"{message} {line.strip()}")
    return failures


def what_went_wrong(notebook, exercise):
    """Phrases on one exercise of an autograded notebook, the most telling first; none if all is well."""
    graded, answer = find_cell(notebook, f"{exercise}-graded"), find_cell(notebook, exercise)
    error = _error(graded)
    if error:
        return [f"its graded cell ended in {error}"]
    printed = "".join(output.text for output in graded.outputs if output.output_type == "stream")
    lines = _verdict(printed, exercise)
    if any(line.startswith("  not begun") for line in lines):
        return ["not begun"]
    failures = failures_in(printed, exercise)
    if failures and all(message.startswith(f"{exercise} is not defined") for _, message in failures):
        if answer is None:
            why = "was deleted"
        elif error := _error(answer):
            why = f"ended in {error}"
        else:
            why = "ran, and defines no function of this name"
        return [f"{exercise} is not defined: its cell {why}"]
    mend = [match[1] for match in map(MEND.match, lines) if match]
    return mend + [f"{check}: {message}" for check, message in failures]


def _verdict(text, exercise):
    """The lines below the exercise's name; above it stands what the learner's function printed."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line == exercise]
    return lines[starts[-1] + 1 :] if starts else []


def _error(cell):
    errors = [output for output in cell.outputs if output.output_type == "error"]
    return f"{errors[0].ename}: {errors[0].evalue}".rstrip(": ") if errors else None


def find_cell(notebook, grade_id):
    """The notebook's cell of this name, or None."""
    named = (c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)
    return next(named, None)
