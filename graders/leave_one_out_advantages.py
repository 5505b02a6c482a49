"""Exercise: each response against the others of its group."""

import numpy as np

import rltokens
from rltokens.checking import arguments_after, has_shape, same

TITLE = "Leave one out"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
Several responses were drawn to the same prompt: a group. How good is one of them? Compare it with the
mean of the *others*. They were drawn without knowledge of it, so that their mean is a baseline which
leaves the expected gradient as it was. With the response's own score in the mean it would not be.

`scores` is `(N, G)`, a group of `G` responses in each row, and `G` is at least 2. Scores may be whole
numbers.
"""

HINTS = [
    "What is the sum of the others, if you know the sum of all?",
    "The others of response i have the sum `total - scores[:, i]` and there are `G - 1` of them. Keep"
    " the axis when you "
    "sum, so that the total of a row can be subtracted from its entries.",
]


def one_winner_of_three(leave_one_out_advantages, rng):
    got = leave_one_out_advantages(np.array([[1.0, 0.0, 0.0]]))
    has_shape(got, (1, 3), "each response gets an advantage: the result has the shape of scores")
    message = (
        "the winner's others have the mean 0, so it is 1 above them; a loser's others have the mean "
        "1/2, so it is "
        "1/2 below"
    )
    same(got, [[1.0, -0.5, -0.5]], message)


def two_against_each_other(leave_one_out_advantages, rng):
    got = leave_one_out_advantages(np.array([[3.0, 1.0], [0.0, 5.0]]))
    same(
        got,
        [[2.0, -2.0], [-5.0, 5.0]],
        "of two responses each is compared with the other one, in its own row",
    )


def groups_are_rows(leave_one_out_advantages, rng):
    got = leave_one_out_advantages(np.array([[1.0, 0.0, 2.0], [100.0, 103.0, 103.0]]))
    message = "a group is a row: what stands in another row is another prompt's"
    same(got, [[0.0, -1.5, 1.5], [-3.0, 1.5, 1.5]], message)


def whole_scores_give_fractions(leave_one_out_advantages, rng):
    got = leave_one_out_advantages(np.array([[1, 0, 0, 0]]))
    same(
        got,
        [[1.0, -1 / 3, -1 / 3, -1 / 3]],
        "scores of whole numbers have fractions for means: -1/3, not -1 or 0",
    )


def an_offset_changes_nothing(leave_one_out_advantages, rng):
    scores = rng.normal(size=(3, 5))
    plain = leave_one_out_advantages(scores)
    same(plain, rltokens.leave_one_out_advantages(scores), "three random groups of five come out wrong")
    same(leave_one_out_advantages(scores + 10), plain, "10 more for everybody is no advantage for anybody")
    same(np.sum(plain, axis=1), np.zeros(3), "the advantages of a group add up to 0")


def leaves_its_argument_alone(leave_one_out_advantages, rng):
    scores = np.array([[1.0, 0.0, 0.0]])
    same(leave_one_out_advantages(scores), [[1.0, -0.5, -0.5]], "the winner of three has 1, the losers -1/2")
    same(
        arguments_after(leave_one_out_advantages, scores)[0],
        scores,
        "your function changed `scores`: work on a copy",
    )


def agrees_on_any_groups(leave_one_out_advantages, rng):
    for groups, size in ((1, 2), (4, 3), (2, 16)):
        scores = 5 * rng.normal(size=(groups, size))
        message = f"{groups} random groups of {size} come out wrong"
        same(leave_one_out_advantages(scores), rltokens.leave_one_out_advantages(scores), message)


VISIBLE = [one_winner_of_three, two_against_each_other]
HIDDEN = [
    groups_are_rows,
    whole_scores_give_fractions,
    an_offset_changes_nothing,
    leaves_its_argument_alone,
    agrees_on_any_groups,
]


def mean_of_all(scores):
    return scores - scores.mean(axis=1, keepdims=True)


def divides_by_the_group_size(scores):
    return scores - (scores.sum(axis=1, keepdims=True) - scores) / scores.shape[1]


def mean_of_the_others(scores):
    return (scores.sum(axis=1, keepdims=True) - scores) / (scores.shape[1] - 1)


def the_other_way_round(scores):
    return -rltokens.leave_one_out_advantages(scores)


def divided_by_the_deviation(scores):
    advantages = rltokens.leave_one_out_advantages(scores)
    return advantages / scores.std(axis=1, keepdims=True)


def columns_for_rows(scores):
    return (
        rltokens.leave_one_out_advantages(scores.T).T
        if len(scores) > 1
        else rltokens.leave_one_out_advantages(scores)
    )


def the_whole_batch(scores):
    return scores - (scores.sum() - scores) / (scores.size - 1)


def whole_numbers_stay_whole(scores):
    others = scores.sum(axis=1, keepdims=True) - scores
    return scores - (
        others // (scores.shape[1] - 1) if scores.dtype.kind == "i" else others / (scores.shape[1] - 1)
    )


def best_of_the_others(scores):
    group = range(scores.shape[1])
    return np.array([[row[i] - max(row[j] for j in group if j != i) for i in group] for row in scores])


def only_positive(scores):
    return np.maximum(rltokens.leave_one_out_advantages(scores), 0.0)


def only_where_something_was_paid(scores):
    return np.where(scores > 0, rltokens.leave_one_out_advantages(scores), scores)


def shifts_in_place(scores):
    result = rltokens.leave_one_out_advantages(scores)
    scores -= scores.mean(axis=1, keepdims=True)
    return result


WRONG = {
    mean_of_all: one_winner_of_three,
    divides_by_the_group_size: one_winner_of_three,
    mean_of_the_others: one_winner_of_three,
    the_other_way_round: one_winner_of_three,
    only_positive: one_winner_of_three,
    best_of_the_others: one_winner_of_three,
    divided_by_the_deviation: two_against_each_other,
    columns_for_rows: two_against_each_other,
    the_whole_batch: groups_are_rows,
    whole_numbers_stay_whole: whole_scores_give_fractions,
    only_where_something_was_paid: an_offset_changes_nothing,
    shifts_in_place: leaves_its_argument_alone,
}


def loop_over_the_others(scores):
    return [
        [float(s) - float(np.mean(np.delete(row, i).astype(float))) for i, s in enumerate(row)]
        for row in scores
    ]


def by_a_matrix(scores):
    size = scores.shape[1]
    return (scores @ (np.eye(size) * size / (size - 1) - 1 / (size - 1))).astype(np.float32)


RIGHT = [loop_over_the_others, by_a_matrix]
