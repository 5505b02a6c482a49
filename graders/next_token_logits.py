"""Exercise: the off-by-one between what a model reads and what it predicts."""

import numpy as np

import rltokens
from rltokens.checking import has_shape, same

TITLE = "Which row predicts which token?"
DIFFICULTY = "easy"
MINUTES = 5
POINTS = 2

STATEMENT = """
A model that reads a prompt of P tokens and a response of T tokens returns P + T rows of logits, and the
row at index i predicts the token at index i + 1. Cut out the T rows that the response tokens were drawn
from. No mistake in this field is made more often: with the wrong slice everything runs, every shape
fits, and each token is scored by a distribution that had already read it.
"""

HINTS = [
    "The first response token stands at index P. Which row predicted it?",
    "The last row of all predicts a token that was never drawn. So the slice ends one before the end.",
]


def starts_at_the_last_prompt_token(next_token_logits, rng):
    rows = np.arange(5.0).reshape(1, 5, 1)  # the row at index i holds the number i
    got = next_token_logits(rows, 2)
    has_shape(got, (1, 3, 1), "5 tokens, 2 of them the prompt's, leave 3 rows for the response")
    same(
        got[0][0],
        [1.0],
        "the first response token, at index P = 2, was predicted by the row at index P - 1 = 1: "
        "that row, as it is, comes first",
    )


def ends_before_the_last_row(next_token_logits, rng):
    logits = np.arange(24.0).reshape(2, 4, 3)  # two rows of the batch, four tokens, three logits each
    got = next_token_logits(logits, 1)
    has_shape(
        got,
        (2, 3, 3),
        "two prompts of 1 token with responses of 3: three rows must come back for each "
        "(the last row of all predicts a token that was never drawn)",
    )
    same(
        got,
        logits[:, [0, 1, 2]],
        "rows 0, 1 and 2 predict the response tokens at 1, 2 and 3: those are not the rows you returned",
    )


def keeps_the_whole_batch(next_token_logits, rng):
    logits = rng.normal(size=(4, 6, 3))
    got = next_token_logits(logits, 3)
    has_shape(
        got, (4, 3, 3), "4 responses of 3 tokens must come back: the slice is over axis 1, not the batch"
    )
    same(got, logits[:, 2:5], "4 responses of 3 tokens, drawn at random, come out wrong")


def works_for_any_lengths(next_token_logits, rng):
    for prompt_length, length in ((1, 1), (1, 5), (4, 2), (7, 1)):
        logits = rng.normal(size=(2, prompt_length + length, 3))
        got = next_token_logits(logits, prompt_length)
        message = f"a prompt of {prompt_length} and a response of {length} tokens come out wrong"
        has_shape(got, (2, length, 3), message)
        same(got, rltokens.next_token_logits(logits, prompt_length), message)


VISIBLE = [starts_at_the_last_prompt_token, ends_before_the_last_row]
HIDDEN = [keeps_the_whole_batch, works_for_any_lengths]


def unshifted(logits, prompt_length):
    return logits[:, prompt_length:]


def keeps_the_last_row(logits, prompt_length):
    return logits[:, prompt_length - 1 :]


def drops_a_response_token(logits, prompt_length):
    return logits[:, prompt_length:-1]


def shifted_twice(logits, prompt_length):
    length = logits.shape[1] - prompt_length
    start = max(prompt_length - 2, 0)
    return logits[:, start : start + length]


def drops_the_prompt_at_the_end(logits, prompt_length):
    return logits[:, :-prompt_length]


def slices_the_batch(logits, prompt_length):
    return logits[prompt_length - 1 : -1]


def first_response_only(logits, prompt_length):
    return logits[:1, prompt_length - 1 : -1]


def prompt_of_two(logits, prompt_length):
    return logits[:, 1:-1]


WRONG = {
    unshifted: starts_at_the_last_prompt_token,
    keeps_the_last_row: ends_before_the_last_row,
    drops_a_response_token: starts_at_the_last_prompt_token,
    shifted_twice: starts_at_the_last_prompt_token,
    drops_the_prompt_at_the_end: starts_at_the_last_prompt_token,
    slices_the_batch: starts_at_the_last_prompt_token,
    first_response_only: keeps_the_whole_batch,
    prompt_of_two: works_for_any_lengths,
}


def loop_over_tokens(logits, prompt_length):
    batch, total, _ = logits.shape
    return [[logits[b, i - 1].tolist() for i in range(prompt_length, total)] for b in range(batch)]


def by_index(logits, prompt_length):
    return np.take(logits, np.arange(prompt_length, logits.shape[1]) - 1, axis=1).astype(np.float32)


def through_torch(logits, prompt_length):
    import torch

    return torch.as_tensor(logits).narrow(1, prompt_length - 1, logits.shape[1] - prompt_length)


RIGHT = [loop_over_tokens, by_index, through_torch]
