"""Arguments are checked before the mathematics: one decorator line a function says what may come.

    @validated(logits=numbers("B T V"), tokens=token_ids("B T", below="V"), mask=mask_of("B T"))

Axes are named by letters; a letter means the same length in every argument. A violation is a
``ValueError`` that names the argument, what was expected and what came. Nothing is converted: the
function gets what the caller gave, so the body reads the same without this line, as it does in the
notebooks, where the line is dropped.
"""

import functools
import inspect
from typing import NamedTuple

import numpy as np


class Array(NamedTuple):
    """What an array argument must be. `axes` are letters, or "... V" for any leading axes."""

    axes: str
    kind: str  # "real", "ids" or "mask"
    below: str | None = None  # for ids: the letter or the argument that bounds them


class Number(NamedTuple):
    """What a scalar argument must be; bounds are numbers, letters or names of other arguments."""

    low: float
    high: float | str | None
    whole: bool


def numbers(axes):
    return Array(axes, "real")


def token_ids(axes, below=None):
    return Array(axes, "ids", below)


def mask_of(axes):
    return Array(axes, "mask")


def whole(low=0, high=None):
    return Number(low, high, True)


def validated(_and=None, /, **rules):
    """Check the named arguments by their rules, then by `_and`, a function of the bound arguments."""

    def decorate(function):
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            # None is let through only where it is the argument's default.
            optional = {name for name in rules if signature.parameters[name].default is None}
            arrays, sizes = _check_shapes(rules, given, optional)
            known = {**sizes, **given}
            for name, rule in rules.items():
                if isinstance(rule, Number):
                    _check_number(name, given[name], rule, known)
            for name, rule in rules.items():
                if name in arrays:
                    _check_values(name, arrays[name], rule, known, arrays.get("mask"))
            if _and is not None:
                _and(given)
            return function(*args, **kwargs)

        return checked

    return decorate


def _check_shapes(rules, given, optional):
    arrays = {
        name: _as_array(name, given[name])
        for name, rule in rules.items()
        if isinstance(rule, Array) and not (given[name] is None and name in optional)
    }
    # The first (B, T) array sets B and T; whatever differs from it is the one at fault.
    order = sorted(arrays, key=lambda name: rules[name].axes != "B T")
    sizes = {}
    for name in order:
        axes, shape = rules[name].axes.split(), arrays[name].shape
        if axes[0] == "...":
            axes, shape = axes[1:], shape[max(0, len(shape) - len(axes) + 1) :]
        agrees = len(axes) == len(shape) and all(
            sizes.get(axis, length) == length for axis, length in zip(axes, shape, strict=True)
        )
        if not agrees or (axes[-1] == "V" and shape[-1] == 0):
            known = " ".join(str(sizes.get(axis, axis)) for axis in rules[name].axes.split())
            raise ValueError(f"{name}: expected shape ({known.replace(' ', ', ')}), got {arrays[name].shape}")
        sizes.update(zip(axes, shape, strict=True))
    return arrays, sizes


def _as_array(name, value):
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected rows of equal length, got rows that differ") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name}: expected real numbers, got {array.dtype}")
    return array


def _check_values(name, array, rule, known, mask_array):
    if rule.kind == "mask" and not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name}: expected only 0 and 1, got {array[~np.isin(array, (0, 1))][0]}")
    if rule.kind == "ids":
        seen = array if mask_array is None else array[mask_array == 1]
        high = np.inf if rule.below is None else known[rule.below]
        bad = seen[~((seen >= 0) & (seen < high) & (np.floor(seen) == seen))]
        if bad.size:
            where = "" if mask_array is None else " wherever mask is 1"
            raise ValueError(f"{name}: expected whole ids from 0 to {high - 1}{where}, got {bad[0]}")


def _check_number(name, value, rule, known):
    high = known[rule.high] if isinstance(rule.high, str) else rule.high
    kinds = (int, np.integer) if rule.whole else (int, float, np.integer, np.floating)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and value >= rule.low
    if not fits or (high is not None and not value <= high):
        noun = "a whole number" if rule.whole else "a number"
        bounds = f"at least {rule.low}" if high is None else f"from {rule.low} to {high}"
        raise ValueError(f"{name}: expected {noun} {bounds}, got {value!r}")
