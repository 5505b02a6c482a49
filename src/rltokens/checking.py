"""What checks are made of: a stand-in for the learner's function, comparisons, and what runs them.

A check is a plain function ``check(answer, rng)``. It calls `answer`, which passes and returns only
plain values (arrays, numbers, strings, None, and tuples, lists and dicts of them), and raises `Wrong`
with a message in the learner's terms. It never sees the function itself, so the same check works
where that function lives in another process.

This file goes whole into the notebooks' ``given.py``: it needs NumPy and the standard library alone.
"""

import contextlib
import copy
import inspect
import math
import signal
import threading
import traceback
import zlib
from typing import NamedTuple

import numpy as np

SECONDS_A_CHECK = 10


class Wrong(Exception):
    """The lesson of a check. `excess` is the error found, in units of the tolerance."""

    def __init__(self, message, detail="", excess=math.inf):
        super().__init__(message)
        self.message, self.detail, self.excess = message, detail, excess


class BadForm(Wrong):
    """The answer has not the type or shape that was asked for, whatever its numbers."""


class Raised(Wrong):
    """The learner's function raised: `kind` is the exception's class name, `text` its message."""

    def __init__(self, kind, text, line=None):
        where = "" if line is None else f" in line {line} of its cell"
        super().__init__(f"your function raised {kind}{where}" + (f": {text}" if text else ""))
        self.kind, self.text, self.line = kind, text, line


class TookTooLong(Wrong):
    """The learner's function did not come back."""


class _Alarm(BaseException):
    """What interrupts the learner's function; no Exception, so that `except Exception` lets it through."""


class Answer:
    """A stand-in for the learner's function, in this process.

    Arguments are copied, so nothing the function does to them reaches the check; results are made plain;
    exceptions arrive as `Raised`.
    """

    def __init__(self, function):
        self._function = function

    def __call__(self, *args, **kwargs):
        return self.drive("call", *args, **kwargs)

    def drive(self, driver, *args, **kwargs):
        """Run one of `DRIVERS` beside the learner's function: for what needs more than a call."""
        args, kwargs = copy.deepcopy((args, kwargs))
        try:
            result = DRIVERS[driver](self._function, *args, **kwargs)
        except (Exception, SystemExit) as error:
            raise Raised(type(error).__name__, str(error), _line_of(error, self._function)) from error
        return plain(result)


def _line_of(error, function):
    """The line of the learner's function that the exception came through; a cell counts its lines from 1."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    return lines[-1] if lines else None


def plain(value):
    """The value as arrays, numbers, booleans, strings, None, and tuples, lists and dicts of them."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "detach"):  # a torch tensor, also one that carries a gradient
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.array(value)  # a copy, and no subclass
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(entry) for entry in value)
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    raise BadForm(f"expected arrays or numbers, got {type(value).__name__}")


# --- Drivers: what runs beside the learner's function and gives back plain values ----------------


def _call(function, *args, **kwargs):
    return function(*args, **kwargs)


def _arguments_after(function, *args):
    function(*args)
    return args


def _names_used(function):
    """The global names that the function reads, directly or through functions of the same module."""
    found, todo = set(), [function]
    while todo:
        current = inspect.unwrap(todo.pop())
        codes = [getattr(current, "__code__", None)]
        names = set()
        while codes:
            code = codes.pop()
            if code is not None:
                names.update(code.co_names)
                codes += [const for const in code.co_consts if inspect.iscode(const)]
        known = getattr(current, "__globals__", {})
        todo += [known[name] for name in names - found if inspect.isfunction(known.get(name))]
        found |= names
    return sorted(found)


DRIVERS = {"call": _call, "arguments_after": _arguments_after, "names_used": _names_used}


def arguments_after(answer, *args):
    """The arguments as they stand after a call: what they were, unless the function changed them."""
    return answer.drive("arguments_after", *args)


# --- Comparisons ---------------------------------------------------------------------------------


def has_shape(got, shape, message):
    """Raise `message` unless the answer is an array of this shape."""
    if _as_numbers(got).shape != tuple(shape):
        raise Wrong(message, f"expected shape {tuple(shape)}, got {_as_numbers(got).shape}")


def same(got, expected, message, tolerance=1e-5):
    """Raise `message` unless `got` equals `expected` within `tolerance` (1 + |expected|), entry by entry.

    An infinity must be met exactly; NaN is never right.
    """
    got, expected = _as_numbers(got), np.asarray(expected, dtype=np.float64)
    if got.shape != expected.shape:
        raise BadForm(f"expected an array of shape {expected.shape}, got one of shape {got.shape}")
    with np.errstate(invalid="ignore"):
        error = np.where(got == expected, 0.0, np.abs(got - expected) / (tolerance * (1 + np.abs(expected))))
    error = np.where(np.isnan(error), math.inf, error)
    if (error > 1).any():
        raise Wrong(message, f"expected {_show(expected)}\n     got {_show(got)}", float(error.max()))


def _as_numbers(value):
    if value is None:
        raise BadForm("got None: a function gives back what stands after `return`")
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadForm(f"expected an array of numbers, got {type(value).__name__} {str(value)[:60]}") from None


def _show(array):
    return np.array2string(array, precision=4, threshold=24, separator=", ").replace("\n", "\n         ")


# --- Inputs --------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Responses of different lengths: logits (B, T, V), tokens (B, T), mask (B, T)."""

    logits: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray


def draw_batch(rng, rows=None, empty_row=True):
    """A ragged batch of random size, one row of it without a real token, padding after each response."""
    rows = int(rng.integers(3, 6)) if rows is None else rows
    length, vocab_size = int(rng.integers(4, 8)), int(rng.integers(3, 9))
    lengths = rng.integers(2, length + 1, size=rows)
    lengths[0] = length - 1  # at least one row ends in padding
    if empty_row and rows > 1:
        lengths[1] = 0
    return Batch(
        logits=2 * rng.normal(size=(rows, length, vocab_size)),
        tokens=rng.integers(vocab_size, size=(rows, length)),
        mask=(np.arange(length) < lengths[:, None]).astype(np.int64),
    )


# --- Running checks ------------------------------------------------------------------------------


class Result(NamedTuple):
    check: str
    failure: Wrong | None  # None: passed
    begun: bool = True  # False: the stub is still there


def run_checks(function, checks, seed=0):
    """Run every check on the function; each has its own random numbers, fixed by its name and `seed`."""
    answer, results = Answer(function), []
    for check in checks:
        if results and isinstance(results[-1].failure, TookTooLong):
            results.append(Result(check.__name__, TookTooLong("not run: the function did not end before")))
            continue
        rng = np.random.default_rng([seed, zlib.crc32(check.__name__.encode())])
        try:
            with _time_limit(SECONDS_A_CHECK):
                check(answer, rng)
        except Wrong as failure:
            begun = not (isinstance(failure, Raised) and failure.kind == "NotImplementedError")
            results.append(Result(check.__name__, failure, begun))
        except Exception as error:  # the check's own arithmetic met something that is no number
            unusable = BadForm(f"your result could not be used ({type(error).__name__}: {error})")
            results.append(Result(check.__name__, unusable))
        else:
            results.append(Result(check.__name__, None))
    return results


def points_earned(results, points):
    """Each check is worth the same share of the points."""
    passed = sum(result.failure is None for result in results)
    return points if passed == len(results) else round(points * passed / len(results), 2)


@contextlib.contextmanager
def _time_limit(seconds):
    """Interrupt an endless loop, where the system has alarms and this is the main thread."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    rung = False

    def stop(*_):
        nonlocal rung
        rung = True
        raise _Alarm

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again each second, should a bare `except` swallow it
    try:
        yield
    except BaseException:
        if not rung:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    if rung:
        raise TookTooLong(f"did not end within {seconds} seconds: is there a loop without an end?")


# --- In a notebook -------------------------------------------------------------------------------

_seen = {}  # exercise: its checks, in the order in which their cells were run


def exercise_of(check):
    """A check's first parameter is the function that it checks."""
    return next(iter(inspect.signature(check).parameters))


def check(namespace, *checks):
    """Run the visible checks of one exercise and say what each found."""
    exercise = exercise_of(checks[0])
    _seen[exercise] = checks
    results = _run_by_name(namespace, exercise, checks)
    _say(exercise, results, namespace, details=True)


def grade(namespace, points, *checks):
    """Run all checks of one exercise, say what each found, and give back the points earned."""
    exercise = exercise_of(checks[0])
    _seen[exercise] = checks
    results = _run_by_name(namespace, exercise, checks)
    _say(exercise, results, namespace, details=False)
    earned = points_earned(results, points)
    print(f"{earned:g} of {points} points")
    return earned


def report(namespace, points):
    """Run the visible checks of every exercise in `points` and print where each stands."""
    at_stake = 0
    width = max(len(exercise) for exercise in points)
    for exercise, worth in points.items():
        if exercise not in _seen:
            state = "its check cell has not been run"
        else:
            results = _run_by_name(namespace, exercise, _seen[exercise])
            failed = [result.check for result in results if result.failure]
            earlier = _to_blame(exercise, namespace) if failed else None
            if not failed:
                state = "passed"
            elif not _begun(results) and not earlier:
                state = "not begun"
            else:
                state = f"FAILED {', '.join(failed)}" + (f" ({earlier} first)" if earlier else "")
        at_stake += 0 if state == "passed" else worth
        print(f"{exercise:<{width}}  {worth} points  {state}")
    print(f"\n{at_stake} of {sum(points.values())} points are still at stake.", end=" ")
    print("The graded cells run these checks and a few more." if not at_stake else "")


def _run_by_name(namespace, exercise, checks):
    function = namespace.get(exercise)
    if not callable(function):
        missing = BadForm(f"{exercise} is not defined: run its cell, and read what that cell says")
        return [Result(check.__name__, missing) for check in checks]
    return run_checks(function, checks)


def _say(exercise, results, namespace, details):
    # Before the first line, since it runs functions that may print.
    earlier = _to_blame(exercise, namespace) if any(result.failure for result in results) else None
    print(exercise)
    if not _begun(results) and not earlier:
        print("  not begun: its cell still raises NotImplementedError")
        return
    for name, failure, _ in results:
        print(f"  passed  {name}" if failure is None else f"  FAILED  {name}: {failure}")
        if failure is not None and failure.detail and details:
            print("     " + failure.detail.replace("\n", "\n     "))
    if earlier:
        print(f"  Mend {earlier} first: {exercise} calls it, and it fails its own checks.")


def _begun(results):
    return any(result.begun for result in results)


def _to_blame(exercise, namespace):
    """The first earlier exercise that this one's function calls and that fails its own checks, or None."""
    if not callable(namespace.get(exercise)):
        return None
    used = Answer(namespace[exercise]).drive("names_used")
    for name, checks in _seen.items():
        if name == exercise:
            return None
        if name in used and any(result.failure for result in _run_by_name(namespace, name, checks)):
            return name
    return None
