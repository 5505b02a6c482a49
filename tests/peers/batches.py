"""What the cross-checks share: how a peer is imported, and random ragged batches."""

import os
from importlib import import_module
from typing import NamedTuple

import numpy as np
import pytest


def peer(module):
    """The module of a peer. Where peers are not installed, the tests skip, but never in `make peers`."""
    if os.environ.get("PEERS") == "required":
        return import_module(module)
    reason = f"{module.partition('.')[0]} is not in this environment; `make peers` has one that holds it"
    return pytest.importorskip(module, reason=reason)


class Batch(NamedTuple):
    """Float64 arrays; what stands at masked positions is as random as the rest."""

    mask: np.ndarray  # (B, T)
    logits: np.ndarray  # (B, T, V)
    tokens: np.ndarray  # (B, T)
    logp: np.ndarray  # (B, T), of the tokens, from the logits
    logp_old: (
        np.ndarray
    )  # (B, T), near enough to `logp` that the clip binds for some tokens and not for others
    advantages: np.ndarray  # (B, T)
    values: np.ndarray  # (B, T)
    values_old: np.ndarray  # (B, T)
    rewards: np.ndarray  # (B, T)
    scores: np.ndarray  # (B,)


def draw(seed, empty_row=True, holes=True):
    """A full row, one of a single token, ragged ones; a row without a token and holes where asked for."""
    rng = np.random.default_rng(seed)
    rows, length, vocab_size = 7, int(rng.integers(5, 12)), int(rng.integers(3, 9))
    lengths = rng.integers(3, length + 1, size=rows)
    lengths[:2] = length, 1
    if empty_row:
        lengths[2] = 0
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    if holes:
        mask[0, 2] = 0  # inside a row
        mask[3, 0] = 0  # at its start
        mask[4, 1] = 0
    logits = 2 * rng.normal(size=(rows, length, vocab_size))
    tokens = rng.integers(vocab_size, size=(rows, length))
    logp = np.take_along_axis(logits, tokens[..., None], -1)[..., 0] - np.log(np.exp(logits).sum(-1))

    def noise(scale=1.0):
        return scale * rng.normal(size=(rows, length))

    values = noise()
    batch = Batch(
        mask=mask,
        logits=logits,
        tokens=tokens,
        logp=logp,
        logp_old=logp + noise(0.3),
        advantages=noise(),
        values=values,
        values_old=values + noise(0.3),
        rewards=noise(),
        scores=rng.normal(size=rows),
    )
    ratio = np.exp(batch.logp - batch.logp_old)[mask == 1]
    assert (ratio > 1.2).any() and (ratio < 0.8).any() and (abs(ratio - 1) < 0.2).any()
    return batch


def unbiased(mask, x):
    """What turns a variance over all real tokens (ddof 0) within our whitening into one with ddof 1.

    Both add 1e-8 under the root, after the choice of the variance.
    """
    real = x[mask == 1]
    return np.sqrt((real.var() + 1e-8) / (real.var(ddof=1) + 1e-8))
