"""The decorator that checks arguments: what it lets through, and what it says of the rest."""

import numpy as np
import pytest

from rltokens.validation import (
    above,
    counts,
    mask_of,
    numbers,
    one_of,
    real,
    token_ids,
    validated,
    whole,
)

pytestmark = pytest.mark.filterwarnings("error")


@validated(
    logits=numbers("B T V"), tokens=token_ids("B T", below="V"), score=numbers("B"), mask=mask_of("B T")
)
def batch(logits, tokens, score, mask):
    """Something over a batch."""
    return logits, tokens, score, mask


@validated(row=numbers("... V"), u=numbers("...", low=0, below=1), other=numbers("... V"))
def leading(row, u, other=None):
    return "called"


@validated(lengths=counts("B", up_to="T"), x=numbers("B T"))
def capped(x, lengths=None):
    return "called"


@validated(limit=whole(1), n=whole(2, "limit"), p=real(0, 1), x=real(), y=above(0), mode=one_of("a", "b"))
def scalars(n=2, limit=5, p=0.5, x=0.0, y=1.0, mode="a"):
    return n, limit, p, x, y, mode


LOGITS, TOKENS, SCORE, MASK = np.zeros((2, 3, 5)), np.ones((2, 3), dtype=int), np.zeros(2), np.ones((2, 3))


def test_the_function_gets_what_the_caller_gave_and_keeps_its_name():
    given = [LOGITS, TOKENS, SCORE, MASK]
    assert all(x is y for x, y in zip(batch(*given), given, strict=True))
    lists = [x.tolist() for x in given]
    assert all(x is y for x, y in zip(batch(*lists), lists, strict=True))
    assert batch.__name__ == "batch"
    assert batch.__doc__ == "Something over a batch."
    assert batch(mask=MASK, logits=LOGITS, score=SCORE, tokens=TOKENS)[0] is LOGITS


def test_the_check_alone_does_not_call_the_function():
    assert batch.check(LOGITS, TOKENS, SCORE, MASK) is None
    with pytest.raises(ValueError, match="score"):
        batch.check(LOGITS, TOKENS, SCORE[:1], MASK)


def test_a_call_that_python_would_refuse_is_a_type_error():
    with pytest.raises(TypeError, match="mask"):
        batch(LOGITS, TOKENS, SCORE)
    with pytest.raises(TypeError, match="nonsense"):
        batch(LOGITS, TOKENS, SCORE, MASK, nonsense=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # The first (B, T) array sets B and T, wherever it stands among the arguments.
        (lambda: batch(LOGITS, TOKENS, SCORE[:1], MASK), r"^score: expected shape \(2\), got \(1,\)$"),
        (
            lambda: batch(LOGITS[:1], TOKENS, SCORE, MASK),
            r"^logits: expected shape \(2, 3, V\), got \(1, 3, 5\)$",
        ),
        (lambda: batch(LOGITS, TOKENS, SCORE, MASK.T), r"^mask: expected shape \(2, 3\), got \(3, 2\)$"),
        (lambda: batch(LOGITS, TOKENS[0], SCORE, MASK), r"^tokens: expected shape \(B, T\), got \(3,\)$"),
        (lambda: batch(LOGITS, TOKENS, SCORE, MASK[0, 0]), r"^mask: expected shape \(2, 3\), got \(\)$"),
        (lambda: batch(LOGITS[..., :0], TOKENS, SCORE, MASK), r"^logits: expected shape .* got \(2, 3, 0\)$"),
        (lambda: batch(LOGITS, [[1, 1, 1], [1, 1]], SCORE, MASK), "^tokens: expected rows of equal length"),
        (lambda: batch(LOGITS, None, SCORE, MASK), "^tokens: expected real numbers, got object$"),
        (lambda: batch(LOGITS, TOKENS, ["a", "b"], MASK), "^score: expected real numbers, got <U1$"),
        (lambda: batch(LOGITS + 1j, TOKENS, SCORE, MASK), "^logits: expected real numbers, got complex128$"),
        # Shapes come before values.
        (lambda: batch(LOGITS, TOKENS, SCORE[:1], 2 * MASK), "^score: "),
        # Values.
        (lambda: batch(LOGITS, TOKENS, SCORE, MASK + 1), "^mask: expected only 0 and 1, got 2.0$"),
        (lambda: batch(LOGITS, TOKENS, SCORE, MASK * np.nan), "^mask: expected only 0 and 1, got nan$"),
        (
            lambda: batch(LOGITS, TOKENS + 4, SCORE, MASK),
            "^tokens: expected whole ids from 0 to 4 wherever mask is 1, got 5$",
        ),
        (lambda: batch(LOGITS, TOKENS - 2, SCORE, MASK), "^tokens: expected whole ids .* got -1$"),
        (lambda: batch(LOGITS, TOKENS + 0.5, SCORE, MASK), "^tokens: expected whole ids .* got 1.5$"),
        (lambda: batch(LOGITS, TOKENS * np.nan, SCORE, MASK), "^tokens: expected whole ids .* got nan$"),
        (lambda: batch(LOGITS, TOKENS * np.inf, SCORE, MASK), "^tokens: expected whole ids .* got inf$"),
    ],
)
def test_arrays_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ids_where_the_mask_is_zero_are_not_looked_at():
    mask = MASK.copy()
    mask[0, 1] = 0
    for junk in (99, -1, np.nan, np.inf, 0.5):
        tokens = TOKENS.astype(float)
        tokens[0, 1] = junk
        batch(LOGITS, tokens, SCORE, mask)
        batch(LOGITS, tokens, SCORE, mask.astype(bool))
        tokens[1, 2] = junk
        with pytest.raises(ValueError, match="tokens"):
            batch(LOGITS, tokens, SCORE, mask)


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint64, np.float16, np.longdouble])
def test_masks_and_ids_of_any_real_type(kind):
    batch(LOGITS, TOKENS.astype(kind), SCORE, MASK.astype(kind))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)])
def test_leading_axes_may_be_any(shape):
    assert leading(np.zeros((*shape, 5)), np.zeros(shape)) == "called"
    assert leading(np.zeros((*shape, 5)), np.zeros(shape), np.zeros((*shape, 5))) == "called"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: leading(np.zeros((2, 3, 5)), np.zeros((2, 4))),
            r"^u: expected shape \(2, 3\), got \(2, 4\)$",
        ),
        (lambda: leading(np.zeros((2, 3, 5)), np.zeros(2)), r"^u: expected shape \(2, 3\), got \(2,\)$"),
        (lambda: leading(np.zeros((2, 5)), 0.5), r"^u: expected shape \(2\), got \(\)$"),
        (lambda: leading(np.zeros(5), [0.5]), r"^u: expected shape \(\), got \(1,\)$"),
        (lambda: leading(1.0, 0.5), r"^row: expected shape \(\.\.\., V\), got \(\)$"),
        (lambda: leading([], 0.5), r"^row: expected shape \(\.\.\., V\), got \(0,\)$"),
        (
            lambda: leading(np.zeros((2, 5)), [0, 0], np.zeros((2, 4))),
            r"^other: expected shape \(2, 5\), got",
        ),
        (
            lambda: leading(np.zeros((2, 5)), [0, 0], np.zeros((3, 5))),
            r"^other: expected shape \(2, 5\), got",
        ),
        (lambda: leading(np.zeros(5), 1.0), r"^u: expected numbers in \[0, 1\), got 1.0$"),
        (lambda: leading(np.zeros((2, 5)), [0.5, -0.1]), r"^u: expected numbers in \[0, 1\), got -0.1$"),
        (lambda: leading(np.zeros(5), np.nan), r"^u: expected numbers in \[0, 1\), got nan$"),
    ],
)
def test_leading_axes_and_bounds_that_do_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_counts_reach_up_to_their_bound_and_may_be_left_out():
    for lengths in (None, [0, 3], [1.0, 2.0], np.array([3, 3], dtype=np.uint8)):
        assert capped(np.zeros((2, 3)), lengths) == "called"
    for lengths, came in (([0, 4], "4"), ([-1, 0], "-1"), ([0, 1.5], "1.5"), ([0, np.nan], "nan")):
        with pytest.raises(ValueError, match=f"^lengths: expected whole numbers from 0 to 3, got {came}$"):
            capped(np.zeros((2, 3)), lengths)
    with pytest.raises(ValueError, match=r"^lengths: expected shape \(2\), got \(3,\)$"):
        capped(np.zeros((2, 3)), [1, 1, 1])


def test_scalars_that_fit():
    assert scalars() == (2, 5, 0.5, 0.0, 1.0, "a")
    scalars(n=np.int64(5), p=0, x=-1e300, y=5e-324, mode="b")
    scalars(n=10**30, limit=10**30)
    scalars(n=4, limit=np.uint8(4), p=np.float32(1), x=np.float16(1), y=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 1}, "^n: expected a whole number from 2 to 5, got 1$"),
        ({"n": 6}, "^n: expected a whole number from 2 to 5, got 6$"),
        ({"n": 4, "limit": 3}, "^n: expected a whole number from 2 to 3, got 4$"),
        ({"n": 2.0}, "^n: expected a whole number from 2 to 5, got 2.0$"),
        ({"n": True}, "^n: expected a whole number from 2 to 5, got True$"),
        ({"n": None}, "^n: expected a whole number from 2 to 5, got None$"),
        ({"n": "2"}, "^n: expected a whole number from 2 to 5, got '2'$"),
        ({"limit": 0}, "^limit: expected a whole number at least 1, got 0$"),
        ({"p": -1e-9}, "^p: expected a number from 0 to 1, got -1e-09$"),
        ({"p": 1 + 1e-9}, "^p: expected a number from 0 to 1, got 1.000000001$"),
        ({"p": float("nan")}, "^p: expected a number from 0 to 1, got nan$"),
        ({"p": True}, "^p: expected a number from 0 to 1, got True$"),
        ({"p": [0.5]}, r"^p: expected a number from 0 to 1, got \[0.5\]$"),
        ({"x": float("inf")}, "^x: expected a number, got inf$"),
        ({"x": float("nan")}, "^x: expected a number, got nan$"),
        ({"x": -float("inf")}, "^x: expected a number, got -inf$"),
        ({"n": 10**400}, "^n: expected a whole number from 2 to 5, got 1000"),
        ({"x": 1j}, "^x: expected a number, got 1j$"),
        ({"y": 0}, "^y: expected a number above 0, got 0$"),
        ({"y": -1.0}, "^y: expected a number above 0, got -1.0$"),
        ({"mode": "c"}, "^mode: expected one of 'a', 'b', got 'c'$"),
        ({"mode": None}, "^mode: expected one of 'a', 'b', got None$"),
        ({"mode": 0}, "^mode: expected one of 'a', 'b', got 0$"),
    ],
)
def test_scalars_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        scalars(**arguments)


def test_the_last_word_is_had_by_a_function_of_all_arguments():
    seen = []

    @validated(lambda given: seen.append(dict(given)), a=whole(0))
    def f(a, b=7):
        return a + b

    assert f(1) == 8
    assert seen == [{"a": 1, "b": 7}]
    with pytest.raises(ValueError, match=r"^a: "):
        f(-1)
    assert len(seen) == 1  # not asked where the rules have failed


# --- Torch ---------------------------------------------------------------------------------------


def tensors(**changes):
    torch = pytest.importorskip("torch")
    given = {"logits": LOGITS, "tokens": TOKENS, "score": SCORE, "mask": MASK, **changes}
    return {key: torch.as_tensor(x) for key, x in given.items()}


def test_tensors_are_let_through_as_they_are():
    torch = pytest.importorskip("torch")
    given = tensors()
    given["logits"].requires_grad_()
    got = batch(**given)
    assert all(x is y for x, y in zip(got, given.values(), strict=True))
    for dtype in (torch.bool, torch.int32, torch.float16, torch.bfloat16):
        batch(**{**given, "mask": given["mask"].to(dtype), "tokens": given["tokens"].to(dtype)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score": SCORE[:1]}, r"^score: expected shape \(2\), got \(1,\)$"),
        ({"logits": LOGITS[:, :2]}, r"^logits: expected shape \(2, 3, V\), got \(2, 2, 5\)$"),
        ({"mask": MASK * 2}, "^mask: expected only 0 and 1, got 2.0$"),
        ({"mask": MASK * np.nan}, "^mask: expected only 0 and 1, got nan$"),
        ({"tokens": TOKENS + 4}, "^tokens: expected whole ids from 0 to 4 wherever mask is 1, got 5"),
        ({"tokens": TOKENS - 2}, "^tokens: expected whole ids from 0 to 4 wherever mask is 1, got -1"),
        ({"logits": LOGITS + 1j}, "^logits: expected real numbers, got torch.complex128$"),
    ],
)
def test_tensors_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        batch(**tensors(**changes))


def test_ids_of_tensors_where_the_mask_is_zero_are_not_looked_at():
    tokens, mask = TOKENS.copy(), MASK.copy()
    tokens[0, 1], mask[0, 1] = 99, 0
    batch(**tensors(tokens=tokens, mask=mask))
    batch(**tensors(tokens=tokens, mask=mask.astype(bool)))


def test_tensors_and_arrays_are_not_mixed():
    given = tensors()
    with pytest.raises(ValueError, match=r"^score: expected a torch tensor, as logits is, got list$"):
        batch(**{**given, "score": [0.0, 0.0]})
    with pytest.raises(ValueError, match=r"^logits: expected a torch tensor, as tokens is, got ndarray$"):
        batch(**{**given, "logits": LOGITS})


def test_values_on_an_accelerator_are_not_read():
    """On the device that has no data at all, a look at a value would raise."""
    torch = pytest.importorskip("torch")
    given = {key: x.to("meta") for key, x in tensors().items()}
    assert batch(**given)[0] is given["logits"]
    with pytest.raises(ValueError, match=r"^score: expected shape \(2\), got \(3,\)$"):
        batch(**{**given, "score": torch.zeros(3, device="meta")})
