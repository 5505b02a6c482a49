"""Arguments are checked before the mathematics: one decorator line a function says what may come.

    @validated(logits=numbers("B T V"), tokens=token_ids("B T", below="V"), mask=mask_of("B T"))

Axes are named by letters; a letter means the same length in every argument, and "..." the same leading
axes. A violation is a ``ValueError`` that names the argument, what was expected and what came. Nothing is
converted: the function gets what the caller gave, so the body reads the same without this line, as it does
in the notebooks, where the line is dropped.

Torch tensors are taken as they are. The values of a tensor that lies on an accelerator are not looked at:
the host would have to wait for them.
"""

import functools
import inspect
from typing import NamedTuple

import numpy as np


class Array(NamedTuple):
    """What an array argument must be. `axes` are letters, or "... V" for any leading axes."""

    axes: str
    kind: str  # "real", "whole" or "mask"
    low: float = -np.inf
    below: float | str | None = None  # a number, a letter or the name of an argument; exclusive
    up_to: str | None = None  # the same, inclusive


class Number(NamedTuple):
    """What a scalar argument must be; bounds are numbers, letters or names of other arguments."""

    low: float
    high: float | str | None
    whole: bool
    above: bool = False  # `low` itself is out


class Choice(NamedTuple):
    """One of a few words."""

    words: tuple


def numbers(axes, low=-np.inf, below=None):
    return Array(axes, "real", low, below)


def token_ids(axes, below=None):
    return Array(axes, "whole", 0, below)


def counts(axes, up_to=None):
    return Array(axes, "whole", 0, up_to=up_to)


def mask_of(axes):
    return Array(axes, "mask")


def whole(low=0, high=None):
    return Number(low, high, True)


def real(low=-np.inf, high=None):
    return Number(low, high, False)


def above(low):
    return Number(low, None, False, above=True)


def one_of(*words):
    return Choice(words)


def validated(_and=None, /, **rules):
    """Check the named arguments by their rules, then by `_and`, a function of the bound arguments."""

    def decorate(function):
        signature = inspect.signature(function)

        def check(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            # None is let through only where it is the argument's default.
            optional = {name for name in rules if signature.parameters[name].default is None}
            arrays, sizes = _check_shapes(rules, given, optional)
            known = {**sizes, **given}
            for name, rule in rules.items():
                if given[name] is None and name in optional:
                    continue
                if isinstance(rule, Number):
                    _check_number(name, given[name], rule, known)
                elif isinstance(rule, Choice) and given[name] not in rule.words:
                    raise ValueError(
                        f"{name}: expected one of {', '.join(map(repr, rule.words))}, got {given[name]!r}"
                    )
            for name, rule in rules.items():
                if name in arrays:
                    mask = arrays.get("mask") if rule.axes == "B T" else None
                    _check_values(name, arrays[name], rule, known, mask)
            if _and is not None:
                _and(given)

        @functools.wraps(function)
        def checked(*args, **kwargs):
            check(*args, **kwargs)
            return function(*args, **kwargs)

        checked.check = check
        return checked

    return decorate


def _check_shapes(rules, given, optional):
    arrays = {
        name: _as_array(name, given[name])
        for name, rule in rules.items()
        if isinstance(rule, Array) and not (given[name] is None and name in optional)
    }
    _check_one_library(arrays, given)
    # The first (B, T) array sets B and T; whatever differs from it is the one at fault.
    order = sorted(arrays, key=lambda name: rules[name].axes != "B T")
    sizes = {}
    for name in order:
        axes, shape = rules[name].axes.split(), tuple(arrays[name].shape)
        if axes[0] == "...":
            leading = max(0, len(shape) - len(axes) + 1)
            shape = (shape[:leading], *shape[leading:])
        agrees = len(axes) == len(shape) and all(
            sizes.get(axis, length) == length for axis, length in zip(axes, shape, strict=True)
        )
        if not agrees or (axes[-1] == "V" and shape[-1] == 0):
            expected = ", ".join(str(sizes.get(axis, axis)).strip("()").rstrip(",") for axis in axes)
            expected = ", ".join(part for part in expected.split(", ") if part)
            raise ValueError(f"{name}: expected shape ({expected}), got {tuple(arrays[name].shape)}")
        sizes.update(zip(axes, shape, strict=True))
    return arrays, sizes


def _as_array(name, value):
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        if value.is_complex():
            raise ValueError(f"{name}: expected real numbers, got {value.dtype}")
        return value.detach()
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected rows of equal length, got rows that differ") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected real numbers, got {array.dtype}")
    return array


def _check_one_library(arrays, given):
    tensors = [name for name, array in arrays.items() if hasattr(array, "detach")]
    for name in arrays:
        if tensors and name not in tensors:
            kind = type(given[name]).__name__
            raise ValueError(f"{name}: expected a torch tensor, as {tensors[0]} is, got {kind}")


def _check_values(name, array, rule, known, mask):
    if rule == numbers(rule.axes):
        return
    if hasattr(array, "detach"):
        if array.device.type != "cpu":
            return
        array = (array.float() if array.is_floating_point() else array).numpy()
        mask = None if mask is None else mask.float().numpy()
    if rule.kind == "mask":
        legal = (array == 0) | (array == 1)
        if not legal.all():
            raise ValueError(f"{name}: expected only 0 and 1, got {array[~legal].flat[0]}")
        return
    seen = array if mask is None else array[mask == 1]
    bound = rule.below if rule.up_to is None else rule.up_to
    high = np.inf if bound is None else known[bound] if isinstance(bound, str) else bound
    good = (seen >= rule.low) & (seen < high if rule.up_to is None else seen <= high)
    if rule.kind == "whole":
        good &= np.floor(seen) == seen
    if not np.all(good):
        where = "" if mask is None else " wherever mask is 1"
        came = seen[~good].flat[0]
        if rule.kind == "real":
            raise ValueError(f"{name}: expected numbers in [{rule.low}, {high}){where}, got {came}")
        noun = "whole ids" if rule.up_to is None else "whole numbers"
        last = high - 1 if rule.up_to is None else high
        raise ValueError(f"{name}: expected {noun} from 0 to {last}{where}, got {came}")


def _check_number(name, value, rule, known):
    high = known[rule.high] if isinstance(rule.high, str) else rule.high
    kinds = (int, np.integer) if rule.whole else (int, float, np.integer, np.floating)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and -np.inf < value < np.inf
    fits = fits and (value > rule.low if rule.above else value >= rule.low)
    if not fits or (high is not None and not value <= high):
        noun = "a whole number" if rule.whole else "a number"
        least = f"above {rule.low}" if rule.above else f"at least {rule.low}"
        bounds = least if high is None else f"from {rule.low} to {high}"
        bounds = "" if rule.low == -np.inf and high is None else " " + bounds
        raise ValueError(f"{name}: expected {noun}{bounds}, got {value!r}")
