"""Exercise: GRPO's advantages, in standard deviations of the group."""

import numpy as np

import rltokens
from rltokens.checking import Wrong, arguments_after, has_shape, same

TITLE = "Group-normalized advantages"
DIFFICULTY = "medium"
MINUTES = 10
POINTS = 3

STATEMENT = """
GRPO takes the mean of the group off each score and divides by the group's standard deviation, that of the
population (over `G`, not `G - 1`). `eps` is added to the standard deviation, after the root.

A group with equal scores has nothing to compare: its advantages are 0, *exactly*. Mind that the mean of
equal numbers can miss them by a rounding error, which a tiny `eps`, or one of 0, does not hide. A group
of one response is such a group. A single call may hold groups of both kinds.
"""

HINTS = [
    "The formula is one line. The rest is about the groups in which all scores are equal: how do you "
    "find them?",
    "A group varies where its minimum is below its maximum. Set the centred scores of the others to "
    "0, and divide those "
    "by 1, so that nothing is divided by 0.",
]


def zero_and_two(group_normalized_advantages, rng):
    got = group_normalized_advantages(np.array([[0.0, 2.0], [10.0, 4.0]]), 0.0)
    has_shape(got, (2, 2), "each response gets an advantage: the result has the shape of scores")
    message = (
        "0 and 2 are one standard deviation below and above their mean, and so are 4 and 10, each in its "
        "own row"
    )
    same(got, [[-1.0, 1.0], [1.0, -1.0]], message)


def population_deviation(group_normalized_advantages, rng):
    got = group_normalized_advantages(np.array([[0.0, 0.0, 3.0]]))
    message = (
        "0, 0 and 3 have the standard deviation 1.414: the mean of the squares is divided by three, not "
        "by two"
    )
    same(got, np.array([[-1.0, -1.0, 2.0]]) / (2**0.5 + 1e-6), message, tolerance=1e-6)


def eps_is_added_to_the_deviation(group_normalized_advantages, rng):
    got = group_normalized_advantages(np.array([[0.0, 2.0]]), 3.0)
    same(got, [[-0.25, 0.25]], "with eps = 3 a deviation of 1 becomes 4, and the advantages -1/4 and 1/4")


def groups_are_rows(group_normalized_advantages, rng):
    got = group_normalized_advantages(np.array([[0.0, 1.0, 2.0], [0.0, 100.0, 200.0]]), 0.0)
    right = np.array([-1.0, 0.0, 1.0]) * 1.5**0.5
    same(
        got,
        [right, right],
        "each group has its own mean and its own deviation, whatever the scale of the others",
    )


def equal_scores_teach_nothing(group_normalized_advantages, rng):
    for eps in (1e-6, 0.0):
        scores = np.array([[0.1, 0.1, 0.1], [0.0, 1.0, 2.0], [1e9 + 0.1] * 3])
        got = group_normalized_advantages(scores, eps)
        right = np.array([-1.0, 0.0, 1.0]) / ((2 / 3) ** 0.5 + eps)
        message = (
            f"with eps = {eps}, groups of equal scores must give 0, exactly, and the one between them "
            "-1.22, 0 and 1.22"
        )
        same(got, [[0.0] * 3, right, [0.0] * 3], message, tolerance=1e-9)
        if np.any(np.asarray(got)[[0, 2]] != 0):
            raise Wrong(message, f"got {np.asarray(got)[[0, 2]]}")


def one_response_teaches_nothing(group_normalized_advantages, rng):
    same(group_normalized_advantages(np.array([[0.0, 2.0]]), 0.0), [[-1.0, 1.0]], "0 and 2 become -1 and 1")
    message = "a group of one has nothing to compare with: its advantage is 0, not NaN and not the score"
    same(group_normalized_advantages(np.array([[3.0], [0.7]]), 0.0), [[0.0], [0.0]], message)


def whole_scores_give_fractions(group_normalized_advantages, rng):
    got = group_normalized_advantages(np.array([[1, 0, 0, 0]]), 0.0)
    message = (
        "one success in four: the deviation is 0.433, the winner 1.73 of it above the mean, the others "
        "0.577 below"
    )
    same(got, np.array([[3.0, -1.0, -1.0, -1.0]]) / 3**0.5, message)


def leaves_its_argument_alone(group_normalized_advantages, rng):
    scores = np.array([[0.0, 2.0]])
    same(group_normalized_advantages(scores, 0.0), [[-1.0, 1.0]], "0 and 2 become -1 and 1")
    after = arguments_after(group_normalized_advantages, scores, 0.0)[0]
    same(after, scores, "your function changed `scores`: work on a copy")


def agrees_on_any_groups(group_normalized_advantages, rng):
    for groups, size in ((1, 2), (4, 3), (2, 16)):
        scores = 5 * rng.normal(size=(groups, size))
        expected = rltokens.group_normalized_advantages(scores, 0.5)
        message = f"{groups} random groups of {size} come out wrong"
        same(group_normalized_advantages(scores, 0.5), expected, message)


VISIBLE = [zero_and_two, population_deviation, eps_is_added_to_the_deviation]
HIDDEN = [
    groups_are_rows,
    equal_scores_teach_nothing,
    one_response_teaches_nothing,
    whole_scores_give_fractions,
    leaves_its_argument_alone,
    agrees_on_any_groups,
]


def centred_and_scaled(scores, mean, scale):
    """The formula, with 0 where there is nothing to divide by."""
    scores = np.asarray(scores, dtype=np.float64)
    varies = scores.min(axis=1, keepdims=True) < scores.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(varies, (scores - mean) / scale, 0.0)


def only_centred(scores, eps=1e-6):
    return scores - scores.mean(axis=1, keepdims=True)


def only_divided(scores, eps=1e-6):
    return centred_and_scaled(scores, 0.0, scores.std(axis=1, keepdims=True) + eps)


def over_the_batch(scores, eps=1e-6):
    return centred_and_scaled(scores, scores.mean(), scores.std() + eps)


def own_mean_common_deviation(scores, eps=1e-6):
    return centred_and_scaled(scores, scores.mean(axis=1, keepdims=True), scores.std() + eps)


def columns_for_rows(scores, eps=1e-6):
    return centred_and_scaled(scores, scores.mean(axis=0), scores.std(axis=0) + eps)


def unbiased_deviation(scores, eps=1e-6):
    deviation = scores.std(axis=1, keepdims=True, ddof=min(1, scores.shape[1] - 1))
    return centred_and_scaled(scores, scores.mean(axis=1, keepdims=True), deviation + eps)


def divides_by_the_variance(scores, eps=1e-6):
    return centred_and_scaled(
        scores, scores.mean(axis=1, keepdims=True), scores.var(axis=1, keepdims=True) + eps
    )


def eps_under_the_root(scores, eps=1e-6):
    deviation = np.sqrt(scores.var(axis=1, keepdims=True) + eps)
    return centred_and_scaled(scores, scores.mean(axis=1, keepdims=True), deviation)


def eps_forgotten(scores, eps=1e-6):
    return centred_and_scaled(scores, scores.mean(axis=1, keepdims=True), scores.std(axis=1, keepdims=True))


def the_formula_alone(scores, eps=1e-6):
    with np.errstate(invalid="ignore", divide="ignore"):
        return (scores - scores.mean(axis=1, keepdims=True)) / (scores.std(axis=1, keepdims=True) + eps)


def one_response_keeps_its_score(scores, eps=1e-6):
    return scores if scores.shape[1] == 1 else rltokens.group_normalized_advantages(scores, eps)


def whole_numbers_stay_whole(scores, eps=1e-6):
    result = rltokens.group_normalized_advantages(scores, eps)
    return result.astype(int) if scores.dtype.kind == "i" else result


def shifts_in_place(scores, eps=1e-6):
    result = rltokens.group_normalized_advantages(scores, eps)
    scores -= scores.mean(axis=1, keepdims=True)
    return result


WRONG = {
    only_centred: eps_is_added_to_the_deviation,
    only_divided: zero_and_two,
    over_the_batch: zero_and_two,
    columns_for_rows: zero_and_two,
    divides_by_the_variance: zero_and_two,
    unbiased_deviation: population_deviation,
    eps_under_the_root: eps_is_added_to_the_deviation,
    eps_forgotten: eps_is_added_to_the_deviation,
    own_mean_common_deviation: groups_are_rows,
    the_formula_alone: equal_scores_teach_nothing,
    one_response_keeps_its_score: one_response_teaches_nothing,
    whole_numbers_stay_whole: whole_scores_give_fractions,
    shifts_in_place: leaves_its_argument_alone,
}


def loop_over_groups(scores, eps=1e-6):
    result = []
    for row in np.asarray(scores, dtype=float).tolist():
        mean = sum(row) / len(row)
        deviation = (sum((s - mean) ** 2 for s in row) / len(row)) ** 0.5
        result.append([0.0 if len(set(row)) == 1 else (s - mean) / (deviation + eps) for s in row])
    return result


def through_torch(scores, eps=1e-6):
    import torch

    s = torch.as_tensor(np.asarray(scores, dtype=np.float64))
    varies = s.amin(dim=1, keepdim=True) < s.amax(dim=1, keepdim=True)
    scale = torch.where(varies, s.std(dim=1, keepdim=True, correction=0) + eps, 1.0)
    return torch.where(varies, s - s.mean(dim=1, keepdim=True), 0.0) / scale


RIGHT = [loop_over_groups, through_torch]


# Changes to the reference that make no difference, and why: see `rltokens audit --mutants`.
EQUIVALENT = {
    "return centered / np.where(varies, scale, 2.0)": "0 divided by anything is 0",
}
