"""Exercise: fill in a table of how six episodes ended."""

import rltokens
from rltokens.checking import BadForm, Wrong

TITLE = "How did it end?"
DIFFICULTY = "medium"
MINUTES = 10
POINTS = 3

STATEMENT = """
No code this time: a table. EOS is token 9, and a response may have at most 4 tokens. An engine sampled
these; what it printed after the end of a response is of no interest.

| episode | prompt | what the engine printed |
|---|---|---|
| a | 5 9 | 2 3 9 |
| b | 5 9 | 2 3 4 9 |
| c | 5 9 | 2 3 4 4 |
| d | 5 | 9 |
| e | 5 | 2 9 9 4, where 9 is the pad id too |
| f | 5 9 9 9 9 | 2 9 |

Give back a dictionary with an entry for each episode. An entry is a tuple of three: how the episode
ended, `"terminated"` or `"truncated"`; how many tokens the response has; and whether a critic's value
of the state after the last token may be added, `True` or `False`. It may where the text would have gone
on, had the cap not been there.
"""

HINTS = [
    "Decide the first column by asking which came first: EOS in the response, or the cap. The prompt is not "
    "the response.",
    "EOS is a token of the response: it counts. What stands behind the first EOS does not. A value after the "
    "end is wanted where something was cut off, and nowhere else.",
]


def episode_ends():
    """How each of the six episodes ended.

    Returns
    -------
    dict from "a", ..., "f" to (how, tokens, bootstrap): a str, "terminated"
    or "truncated"; an int; a bool

    Examples
    --------
    >>> sorted(episode_ends())
    ['a', 'b', 'c', 'd', 'e', 'f']
    """
    return {
        "a": ("terminated", 3, False),
        "b": ("terminated", 4, False),
        "c": ("truncated", 4, True),
        "d": ("terminated", 1, False),
        "e": ("terminated", 2, False),
        "f": ("terminated", 2, False),
    }


solution = episode_ends  # by this name the answers below reach it, whatever a notebook calls episode_ends


def read_column(table, column):
    """One column of the learner's table, in the order of the episodes."""
    if not isinstance(table, dict) or sorted(table) != list("abcdef"):
        raise BadForm("expected a dictionary with the keys 'a' to 'f'")
    for episode, entry in table.items():
        if not isinstance(entry, (tuple, list)) or len(entry) != 3:
            raise BadForm(f"episode {episode}: expected a tuple of three, got {entry!r}")
    return [table[episode][column] for episode in "abcdef"]


def entry_must_be(got, episode, expected, message):
    value = got["abcdef".index(episode)]
    if type(value) is not type(expected) or value != expected:
        raise Wrong(message, f"episode {episode}: got {value!r}")


def eos_ends_an_episode(episode_ends, rng):
    how = read_column(episode_ends(), 0)
    entry_must_be(how, "a", "terminated", "episode a: an EOS in the response terminates it")
    entry_must_be(how, "c", "truncated", "episode c: four tokens and no EOS is a response that was cut off")
    entry_must_be(
        how, "d", "terminated", "episode d: a response may consist of EOS alone; then it is terminated"
    )


def eos_counts_as_a_token(episode_ends, rng):
    tokens = read_column(episode_ends(), 1)
    entry_must_be(tokens, "a", 3, "episode a: EOS is drawn like any other token, and it counts")
    entry_must_be(tokens, "d", 1, "episode d: a lone EOS is a response of one token")


def eos_beats_the_cap(episode_ends, rng):
    how = read_column(episode_ends(), 0)
    entry_must_be(how, "c", "truncated", "episode c: it ended without EOS")
    entry_must_be(
        how, "b", "terminated", "episode b: EOS as the very last token still terminates: nothing was cut off"
    )


def what_follows_the_end_is_no_token(episode_ends, rng):
    tokens = read_column(episode_ends(), 1)
    entry_must_be(tokens, "c", 4, "episode c: no EOS, so all four tokens count")
    entry_must_be(
        tokens, "e", 2, "episode e: the response ends with its first EOS, what stands behind is padding"
    )


def the_prompt_is_not_the_response(episode_ends, rng):
    how, tokens, _ = (read_column(episode_ends(), column) for column in range(3))
    entry_must_be(how, "f", "terminated", "episode f: the prompt's length does not count towards the cap")
    entry_must_be(tokens, "f", 2, "episode f: the response has two tokens; an EOS in the prompt ends nothing")


def only_a_cut_response_is_bootstrapped(episode_ends, rng):
    bootstrap = read_column(episode_ends(), 2)
    entry_must_be(
        bootstrap,
        "c",
        True,
        "episode c: the text would have gone on, so the critic's value stands in for the rest",
    )
    for episode in "abdef":
        entry_must_be(
            bootstrap,
            episode,
            False,
            f"episode {episode}: it ended by EOS, nothing comes after, and its value is 0",
        )


def agrees_with_response_mask(episode_ends, rng):
    printed = {
        "a": (2, 3, 9),
        "b": (2, 3, 4, 9),
        "c": (2, 3, 4, 4),
        "d": (9,),
        "e": (2, 9, 9, 4),
        "f": (2, 9),
    }
    tokens = read_column(episode_ends(), 1)
    for episode, text in printed.items():
        count = int(rltokens.response_mask([text], eos=9).sum())
        entry_must_be(
            tokens, episode, count, f"episode {episode}: `response_mask` counts another number of tokens"
        )


VISIBLE = [eos_ends_an_episode, eos_counts_as_a_token]
HIDDEN = [
    eos_beats_the_cap,
    what_follows_the_end_is_no_token,
    the_prompt_is_not_the_response,
    only_a_cut_response_is_bootstrapped,
    agrees_with_response_mask,
]


def everything_is_truncated():
    return {episode: ("truncated", *entry[1:]) for episode, entry in solution().items()}


def eos_is_not_counted():
    return {e: (how, n - (how == "terminated"), more) for e, (how, n, more) in solution().items()}


def the_cap_beats_eos():
    return {**solution(), "b": ("truncated", 4, False)}


def padding_is_counted():
    return {**solution(), "e": ("terminated", 4, False)}


def the_prompt_is_counted():
    return {**solution(), "f": ("truncated", 4, True)}


def the_prompts_eos_ends_it():
    return {**solution(), "f": ("terminated", 0, False)}


def every_end_is_bootstrapped():
    return {episode: (*entry[:2], True) for episode, entry in solution().items()}


def no_end_is_bootstrapped():
    return {episode: (*entry[:2], False) for episode, entry in solution().items()}


def bootstraps_a_full_length():
    return {**solution(), "b": ("terminated", 4, True)}


WRONG = {
    everything_is_truncated: eos_ends_an_episode,
    eos_is_not_counted: eos_counts_as_a_token,
    the_cap_beats_eos: eos_beats_the_cap,
    padding_is_counted: what_follows_the_end_is_no_token,
    the_prompt_is_counted: the_prompt_is_not_the_response,
    the_prompts_eos_ends_it: the_prompt_is_not_the_response,
    every_end_is_bootstrapped: only_a_cut_response_is_bootstrapped,
    no_end_is_bootstrapped: only_a_cut_response_is_bootstrapped,
    bootstraps_a_full_length: only_a_cut_response_is_bootstrapped,
}


def stepping_through():
    table = {}
    for episode, text in zip("abcdef", ["239", "2349", "2344", "9", "2994", "29"], strict=True):
        state, done = ((5,), ()), False
        for token in map(int, text):
            if not done:
                state, terminated, truncated = rltokens.transition(state, token, eos=9, max_length=4)
                done = terminated or truncated
        table[episode] = ("terminated" if terminated else "truncated", len(state[1]), truncated)
    return table


def lists_in_another_order():
    return {episode: list(entry) for episode, entry in sorted(solution().items(), reverse=True)}


RIGHT = [stepping_through, lists_in_another_order]
