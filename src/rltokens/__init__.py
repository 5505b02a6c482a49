"""RL on Token Sequences: text generation as a Markov decision process, computed exactly.

Every function of the course can be imported from here; the module that holds it loads when the
name is first used, so that ``import rltokens`` costs nothing and needs neither torch nor Matplotlib.
"""

from importlib import import_module

_HOME = {
    "enumerate_responses": "mdp",
    "importance_ratios": "logprobs",
    "log_softmax": "logprobs",
    "next_token_logits": "logprobs",
    "sequence_distribution": "logprobs",
    "sequence_logprobs": "logprobs",
    "token_logprobs": "logprobs",
}
_MODULES = ("logprobs", "mdp", "plots", "toy")

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name):
    if name in _HOME:
        return getattr(import_module(f"rltokens.{_HOME[name]}"), name)
    if name in _MODULES:
        return import_module(f"rltokens.{name}")
    raise AttributeError(f"module 'rltokens' has no attribute {name!r}")


def __dir__():
    return __all__
