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
import io
import linecache
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
    """The learner's function raised: `kind` is the exception's class name, `text` its message.

    `line` is the line of the function's cell, `code` what stands there, and `inside` the name of the
    function in which it happened: the learner's own, or one that it called.
    """

    def __init__(self, kind, text, line=None, code="", inside=None):
        text = " ".join(text.split())[:200]  # one line, whatever the exception says
        where = "" if line is None else f" in line {line} of its cell" + (f" (`{code}`)" if code else "")
        said = f"your function raised {kind}{where}" + (f": {text}" if text else "")
        if kind == "NotImplementedError" and inside is not None:
            said = f"your function calls {inside}, which is not written yet"
        super().__init__(said)
        self.kind, self.text, self.line, self.inside = kind, text, line, inside

    def from_the_stub(self, exercise):
        return self.kind == "NotImplementedError" and self.inside in (None, exercise)


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
            raise Raised(type(error).__name__, str(error), *_place_of(error, self._function)) from error
        return plain(result)


def _place_of(error, function):
    """(line, what stands there, innermost function): where in the learner's code the exception came from."""
    own = getattr(inspect.unwrap(function), "__code__", None)
    places = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    lines = [line for code, line in places if code is own]  # a cell counts its lines from 1
    if not lines:
        return None, "", None
    return lines[-1], linecache.getline(own.co_filename, lines[-1]).strip(), places[-1][0].co_name


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
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    raise BadForm(f"expected arrays of real numbers, got {kind}")


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


def must_not_raise(kind, message, answer, *args):
    """Call the answer; an exception of this class name is the lesson `message`, any other is not."""
    try:
        return answer(*args)
    except Raised as error:
        if error.kind == kind:
            raise Wrong(message, str(error)) from None
        raise


def has_shape(got, shape, message):
    """Raise `message` unless the answer is an array of this shape."""
    if _as_numbers(got).shape != tuple(shape):
        raise Wrong(message, f"expected shape {tuple(shape)}, got {_as_numbers(got).shape}")


def same(got, expected, message, tolerance=1e-5, not_finite=None):
    """Raise `message` unless `got` equals `expected` within `tolerance` (1 + |expected|), entry by entry.

    An infinity must be met exactly; NaN is never right. `not_finite` is said in place of `message` where
    NaN or an infinity stands and a finite number should.
    """
    got, expected = _as_numbers(got), np.asarray(expected, dtype=np.float64)
    if got.shape != expected.shape:
        raise BadForm(f"expected an array of shape {expected.shape}, got one of shape {got.shape}")
    with np.errstate(invalid="ignore"):
        error = np.where(got == expected, 0.0, np.abs(got - expected) / (tolerance * (1 + np.abs(expected))))
    error = np.where(np.isnan(error), math.inf, error)
    if (error > 1).any():
        if not_finite and not np.isfinite(got[np.isfinite(expected)]).all():
            message = not_finite
        raise Wrong(message, f"expected {_show(expected)}\n     got {_show(got)}", float(error.max()))


def _as_numbers(value):
    if value is None:
        raise BadForm("got None: a function gives back what stands after `return`")
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadForm(f"expected an array of numbers, got {type(value).__name__} that is none") from None


def _show(array):
    text = np.array2string(array + 0.0, precision=4, threshold=24, separator=", ")  # -0 + 0 is 0
    return text.replace("\n", "\n         ")


# --- Inputs --------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Responses of different lengths: logits (B, T, V), tokens (B, T), mask (B, T)."""

    logits: np.ndarray
    tokens: np.ndarray
    mask: np.ndarray


def draw_batch(rng, rows=None, empty_row=True):
    """A ragged batch of random size: padding after responses, a hole inside one, an empty row."""
    rows = int(rng.integers(3, 6)) if rows is None else rows
    length, vocab_size = int(rng.integers(4, 8)), int(rng.integers(3, 9))
    lengths = rng.integers(2, length + 1, size=rows)
    lengths[0] = length - 1  # at least one row ends in padding
    if empty_row and rows > 1:
        lengths[1] = 0
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    mask[0, 1] = 0  # the first row has at least three tokens, so this lies inside it
    return Batch(
        logits=2 * rng.normal(size=(rows, length, vocab_size)),
        tokens=rng.integers(vocab_size, size=(rows, length)),
        mask=mask,
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
            begun = not (isinstance(failure, Raised) and failure.from_the_stub(exercise_of(check)))
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
    _say(exercise, results, namespace, in_full=True)


def grade(namespace, points, *checks):
    """Run all checks of one exercise, say what each found, and give back the points earned."""
    exercise = exercise_of(checks[0])
    _seen[exercise] = checks
    results = _run_by_name(namespace, exercise, checks)
    _say(exercise, results, namespace, in_full=False)
    earned = points_earned(results, points)
    print(f"{earned:g} of {points} points")
    return earned


def report(namespace, points):
    """Run the visible checks of every exercise in `points` and print where each stands."""
    won = 0
    width = max(len(exercise) for exercise in points)
    for exercise, worth in points.items():
        with contextlib.redirect_stdout(io.StringIO()):  # what the functions print was seen above
            state = state_of(namespace, exercise)
        won += worth if state == "passed" else 0
        print(f"{exercise:<{width}}  {worth} points  {state}")
    total = sum(points.values())
    print(f"\nThe visible checks pass for {won} of {total} points; {total - won} are still at stake.")
    print("The graded cells run these checks and more, on cases that the exercises' texts name.")


def state_of(namespace, exercise):
    """Where an exercise stands by its visible checks, in words; "passed" if all of them pass."""
    if exercise not in _seen:
        return "its check cell has not been run"
    results = _run_by_name(namespace, exercise, _seen[exercise])
    failed = [result.check for result in results if result.failure]
    if not failed:
        return "passed"
    if not _begun(results):
        return "not begun"
    first = _to_mend_first(exercise, namespace)
    return f"FAILED {', '.join(failed)}" + (f" (mend {first} first)" if first else "")


def _run_by_name(namespace, exercise, checks):
    function = namespace.get(exercise)
    if not callable(function):
        missing = BadForm(
            f"{exercise} is not defined as a function: did its cell run without an error, "
            "and does it still have this name?"
        )
        return [Result(check.__name__, missing) for check in checks]
    return run_checks(function, checks)


def _say(exercise, results, namespace, in_full):
    print(exercise)
    if not _begun(results):
        print("  not begun: the version that ran last still raises NotImplementedError")
        return
    said = None
    for name, failure, _ in results:
        if failure is None:
            print(f"  passed  {name}")
        elif in_full and str(failure) == said:
            print(f"  FAILED  {name}: the same")
        else:
            said = str(failure)
            print(f"  FAILED  {name}: {said}")
            if failure.detail and in_full:
                print("     " + failure.detail.replace("\n", "\n     "))
    first = _to_mend_first(exercise, namespace) if any(result.failure for result in results) else None
    if first:
        print(f"  Mend {first} first: {exercise} is built on it, and it fails its own checks.")


def _begun(results):
    return any(result.begun for result in results)


def _to_mend_first(exercise, namespace):
    """An exercise that this one's function calls and that fails by its own fault, or None."""

    def used_by(name):
        function = namespace.get(name)
        used = Answer(function).drive("names_used") if callable(function) else []
        return [other for other in _seen if other in used and other != name]

    with contextlib.redirect_stdout(io.StringIO()):
        failing = [
            name
            for name in used_by(exercise)
            if any(result.failure for result in _run_by_name(namespace, name, _seen[name]))
        ]
        return next((name for name in failing if not set(used_by(name)) & set(failing)), None)
