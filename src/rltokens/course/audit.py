"""Every check is proven: right answers pass them all, and each wrong one meets the check meant for it."""

import importlib.util

import numpy as np
from tqdm import tqdm

from rltokens.checking import Wrong, run_checks
from rltokens.course.mutants import survivors

# What a check compares must differ between right and wrong by this many times its tolerance.
MARGIN = 100


def audit(course):
    """Judge every named answer of the course; a dict of counts and of what was misjudged, in words."""
    found = {
        "chapters": {},
        "exercises": 0,
        "points": 0,
        "wrong_answers": 0,
        "right_answers": 0,
        "accepted_wrong": [],
        "rejected_right": [],
        "skipped": [],
    }
    for exercise in course.exercises.values():
        chapter = found["chapters"].setdefault(
            exercise.chapter, {"exercises": 0, "points": 0, "wrong_answers": 0, "right_answers": 0}
        )
        for count in (found, chapter):
            count["exercises"] += 1
            count["points"] += exercise.points
            count["wrong_answers"] += len(exercise.wrong)
            count["right_answers"] += len(exercise.right)
        for answer in (exercise.function, *exercise.right):
            if _needs_torch(answer) and importlib.util.find_spec("torch") is None:
                found["skipped"].append(
                    f"{exercise.name}: {answer.__name__} needs torch, which is not installed"
                )
                continue
            found["rejected_right"] += why_rejected(exercise, answer)
        for answer, meant in exercise.wrong:
            found["accepted_wrong"] += why_accepted(exercise, answer, meant)
        for answer in trivial_answers(exercise):
            found["accepted_wrong"] += why_it_earns(exercise, answer)
    return found


def why_rejected(exercise, answer):
    """What the checks say against a right answer: a list of sentences, empty where all is well."""
    results = run_checks(answer, (*exercise.visible, *exercise.hidden))
    return [
        f"{exercise.name}: {answer.__name__} is right, but {r.check} says: {r.failure}"
        for r in results
        if r.failure
    ]


def why_accepted(exercise, answer, meant):
    """What is amiss with the verdict on a wrong answer: a list of sentences, empty where all is well."""
    who = f"{exercise.name}: {answer.__name__}"
    if meant not in (*exercise.visible, *exercise.hidden):
        return [f"{who} names {meant.__name__}, which is not among the exercise's checks"]
    (result,) = run_checks(answer, [meant])
    if result.failure is None:
        return [f"{who} is wrong, but {meant.__name__} accepts it"]
    if type(result.failure) is not Wrong:
        return [f"{who} fails {meant.__name__} for another reason than its lesson: {result.failure}"]
    if result.failure.excess < MARGIN:
        return [f"{who} misses by {result.failure.excess:.0f} tolerances only; {MARGIN} are asked for"]
    return []


def why_it_earns(exercise, answer):
    """An answer without any work must pass no check at all."""
    results = run_checks(answer, (*exercise.visible, *exercise.hidden))
    return [f"{exercise.name}: {answer.__name__} passes {r.check}" for r in results if r.failure is None]


def trivial_answers(exercise):
    """The blank stub, and what one would return to see whether anybody looks."""

    def blank_stub(*arguments):
        raise NotImplementedError

    def returns_nothing(*arguments):
        return None

    def returns_its_first_argument(*arguments):
        return arguments[0]

    def returns_zeros(*arguments):
        return np.zeros_like(exercise.function(*arguments))

    return blank_stub, returns_nothing, returns_its_first_argument, returns_zeros


def _needs_torch(answer):
    return "torch" in answer.__code__.co_varnames


def judge_mutants(course):
    """Count the mutants of every reference, and list those that no check rejects, in words."""
    found = {"mutants": 0, "equivalent": 0, "accepted": []}
    # disable=None: no bar where the output is no terminal.
    for exercise in tqdm(course.exercises.values(), desc="mutants", unit="exercise", disable=None):
        count, accepted = survivors(exercise)
        found["mutants"] += count
        found["equivalent"] += len(getattr(exercise.grader, "EQUIVALENT", {}))
        found["accepted"] += [f"{exercise.name}: {line}" for line in accepted]
    return found


def table(found):
    """The audit as text: a line a chapter, the sum, and every misjudged answer."""
    head = f"{'chapter':<10}{'exercises':>10}{'points':>8}{'wrong answers':>15}{'right answers':>15}"
    lines = [head]
    for name, count in [*found["chapters"].items(), ("all", found)]:
        lines.append(
            f"{name:<10}{count['exercises']:>10}{count['points']:>8}"
            f"{count['wrong_answers']:>15}{count['right_answers']:>15}"
        )
    for heading, key in (("Misjudged, wrong", "accepted_wrong"), ("Misjudged, right", "rejected_right")):
        lines += [f"{heading}: {sentence}" for sentence in found[key]]
    lines += [f"Skipped: {sentence}" for sentence in found["skipped"]]
    if not found["accepted_wrong"] and not found["rejected_right"]:
        lines.append("No answer is misjudged.")
    if "mutants" in found:
        mutants = found["mutants"]
        lines += [f"Accepted, a mutant: {line}" for line in mutants["accepted"]]
        lines.append(
            f"{mutants['mutants']} mutants of the references: {len(mutants['accepted'])} accepted, "
            f"{mutants['equivalent']} listed as equivalent, the others rejected."
        )
    return "\n".join(lines)


def misjudged(found):
    accepted_mutants = found.get("mutants", {}).get("accepted")
    return bool(found["accepted_wrong"] or found["rejected_right"] or accepted_mutants)
