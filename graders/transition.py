"""Exercise: one step of the environment."""

import rltokens
from rltokens.checking import BadForm, Wrong

TITLE = "One step of the environment"
DIFFICULTY = "easy"
MINUTES = 8
POINTS = 2

STATEMENT = """
The whole dynamics of writing: append the chosen token, and say whether the episode is over. A state is a
pair of tuples, the prompt and the response so far. Give back the next state, again a pair of tuples, and
two truth values.

The episode is *terminated* if the token is EOS. It is *truncated* if the response now has `max_length`
tokens and the last is not EOS; so it is never both. EOS is a token like any other: it is appended and it
counts. The prompt may be of any length and may hold EOS: neither means anything for the response.
"""

HINTS = [
    "Unpack the state first: `prompt, response = state`. Which of the two does the action change?",
    "`response + (action,)` is the new response. Compare `action` with `eos`, and the length of the "
    "*new* response with "
    "`max_length`.",
]


def parts_of(result):
    """(prompt, response, terminated, truncated), if the answer has the form that was asked for."""
    if not isinstance(result, (tuple, list)) or len(result) != 3:
        raise BadForm("expected three things: `return next_state, terminated, truncated`")
    state, terminated, truncated = result
    if not isinstance(state, tuple) or len(state) != 2 or not all(isinstance(part, tuple) for part in state):
        raise BadForm(f"the next state must be a pair of tuples, (prompt, response), got {state!r}")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool) and flag not in (0, 1):
            raise BadForm(f"{name}: expected True or False, got {flag!r}")
    return *state, bool(terminated), bool(truncated)


def must_be(got, expected, message):
    if got != expected:
        raise Wrong(message, f"expected {expected}\n     got {got}")


def the_token_is_appended(transition, rng):
    prompt, response, terminated, truncated = parts_of(transition(((5, 6), (2,)), 3, 9, 4))
    must_be(prompt, (5, 6), "the prompt stays as it was")
    must_be(response, (2, 3), "the token 3 is appended at the end of the response (2,)")
    must_be((terminated, truncated), (False, False), "two of four tokens and no EOS: the episode goes on")


def eos_terminates(transition, rng):
    _, response, terminated, truncated = parts_of(transition(((5, 6), (2,)), 9, 9, 4))
    must_be((terminated, truncated), (True, False), "the token was EOS: terminated, and not truncated")
    must_be(response, (2, 9), "EOS is a token of the response: it is appended too")


def the_cap_truncates(transition, rng):
    _, response, terminated, truncated = parts_of(transition(((5, 6), (2, 3, 4)), 7, 9, 4))
    must_be(response, (2, 3, 4, 7), "the fourth token is appended")
    must_be(
        (terminated, truncated),
        (False, True),
        "four of four tokens and no EOS: truncated, and not terminated",
    )


def eos_at_the_cap_terminates(transition, rng):
    _, response, terminated, truncated = parts_of(transition(((5, 6), (2, 3, 4)), 9, 9, 4))
    must_be(response, (2, 3, 4, 9), "EOS is appended as the fourth token")
    must_be(
        (terminated, truncated),
        (True, False),
        "EOS as the very last token: terminated, and nothing was cut off",
    )


def the_prompt_does_not_count(transition, rng):
    prompt = (5, 9, 6, 7, 8)
    got = parts_of(transition((prompt, (2,)), 3, 9, 3))
    must_be(got[0], prompt, "the prompt stays as it was")
    message = (
        "a prompt of five tokens with EOS in it: the response has two of three tokens, and the episode "
        "goes on"
    )
    must_be(got[1:], ((2, 3), False, False), message)


def the_empty_response_and_the_cap_of_one(transition, rng):
    got = parts_of(transition(((), ()), 0, 9, 1))
    must_be(
        got,
        ((), (0,), False, True),
        "with max_length 1 the first token is the last: truncated unless it is EOS",
    )


def zero_may_be_eos(transition, rng):
    got = parts_of(transition(((1,), (4,)), 0, 0, 5))
    must_be(
        got, ((1,), (4, 0), True, False), "the id of EOS may be 0: compare, and do not ask whether it is true"
    )


def agrees_over_a_whole_episode(transition, rng):
    for _ in range(20):
        state = tuple(rng.integers(4, size=2).tolist()), ()
        for token in rng.integers(4, size=5).tolist():
            expected = rltokens.transition(state, token, 3, 5)
            got = parts_of(transition(state, token, 3, 5))
            must_be(
                got,
                (*expected[0], *expected[1:]),
                f"after {state}, token {token}, with EOS 3 and five tokens at most",
            )
            state = expected[0]
            if any(expected[1:]):
                break


VISIBLE = [the_token_is_appended, eos_terminates, the_cap_truncates]
HIDDEN = [
    eos_at_the_cap_terminates,
    the_prompt_does_not_count,
    the_empty_response_and_the_cap_of_one,
    zero_may_be_eos,
    agrees_over_a_whole_episode,
]


def step(state, action, eos, max_length):
    """The right step in five plain parts, for the answers below to spoil."""
    prompt, response = state
    response = (*response, action)
    return prompt, response, action == eos, len(response) == max_length


def appended_to_the_prompt(state, action, eos, max_length):
    prompt, _response, ended, full = step(state, action, eos, max_length)
    return ((*prompt, action), state[1]), ended, full and not ended


def put_in_front(state, action, eos, max_length):
    prompt, _, ended, full = step(state, action, eos, max_length)
    return (prompt, (action, *state[1])), ended, full and not ended


def eos_is_not_appended(state, action, eos, max_length):
    prompt, response, ended, full = step(state, action, eos, max_length)
    return (prompt, state[1] if ended else response), ended, full and not ended


def never_truncated(state, action, eos, max_length):
    prompt, response, ended, _ = step(state, action, eos, max_length)
    return (prompt, response), ended, False


def the_cap_terminates(state, action, eos, max_length):
    prompt, response, ended, full = step(state, action, eos, max_length)
    return (prompt, response), ended or full, False


def counts_before_appending(state, action, eos, max_length):
    prompt, response, ended, _ = step(state, action, eos, max_length)
    return (prompt, response), ended, len(state[1]) == max_length and not ended


def one_token_too_early(state, action, eos, max_length):
    prompt, response, ended, _ = step(state, action, eos, max_length)
    return (prompt, response), ended, len(response) >= max_length - 1 and not ended


def both_at_once(state, action, eos, max_length):
    prompt, response, ended, full = step(state, action, eos, max_length)
    return (prompt, response), ended, full


def the_cap_beats_eos(state, action, eos, max_length):
    prompt, response, ended, full = step(state, action, eos, max_length)
    return (prompt, response), ended and not full, full


def prompt_counts_towards_the_cap(state, action, eos, max_length):
    prompt, response, ended, _ = step(state, action, eos, max_length)
    length = len(response) + max(len(prompt) - 2, 0)
    return (prompt, response), ended, length >= max_length and not ended


def eos_anywhere(state, action, eos, max_length):
    prompt, response, _, full = step(state, action, eos, max_length)
    ended = eos in prompt + response
    return (prompt, response), ended, full and not ended


def eos_where_it_is_true(state, action, eos, max_length):
    prompt, response, _, full = step(state, action, eos, max_length)
    ended = bool(eos) and action == eos
    return (prompt, response), ended, full and not ended


def at_least_two_tokens(state, action, eos, max_length):
    prompt, response, ended, _ = step(state, action, eos, max_length)
    return (prompt, response), ended, len(response) >= max(max_length, 2) and not ended


WRONG = {
    appended_to_the_prompt: the_token_is_appended,
    put_in_front: the_token_is_appended,
    eos_is_not_appended: eos_terminates,
    never_truncated: the_cap_truncates,
    the_cap_terminates: the_cap_truncates,
    counts_before_appending: the_cap_truncates,
    one_token_too_early: agrees_over_a_whole_episode,
    both_at_once: eos_at_the_cap_terminates,
    the_cap_beats_eos: eos_at_the_cap_terminates,
    prompt_counts_towards_the_cap: the_prompt_does_not_count,
    eos_anywhere: the_prompt_does_not_count,
    at_least_two_tokens: the_empty_response_and_the_cap_of_one,
    eos_where_it_is_true: zero_may_be_eos,
}


def in_one_line(state, action, eos, max_length):
    return (state[0], state[1] + (action,)), action == eos, len(state[1]) + 1 == max_length and action != eos


def with_numpy(state, action, eos, max_length):
    import numpy as np

    response = tuple(np.append(np.array(state[1], dtype=int), action).tolist())
    ended = np.equal(response[-1], eos)
    return (state[0], response), ended, np.logical_and(~ended, len(response) >= max_length)


RIGHT = [in_one_line, with_numpy]
