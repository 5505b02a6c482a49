"""RL on Token Sequences: text generation as a Markov decision process, computed exactly.

Every function of the course can be imported from here; the module that holds it loads when the
name is first used, so that ``import rltokens`` costs nothing and needs neither torch nor Matplotlib.
"""

from importlib import import_module

_HOME = {
    "enumerate_responses": "mdp",
    "response_mask": "mdp",
    "sample_token": "mdp",
    "transition": "mdp",
    "TokenMDP": "environment",
    "importance_ratios": "logprobs",
    "log_softmax": "logprobs",
    "next_token_logits": "logprobs",
    "sequence_distribution": "logprobs",
    "sequence_logprobs": "logprobs",
    "token_logprobs": "logprobs",
    "gae": "credit",
    "group_normalized_advantages": "credit",
    "leave_one_out_advantages": "credit",
    "masked_mean": "credit",
    "masked_whiten": "credit",
    "policy_gradient_logits": "credit",
    "returns_to_go": "credit",
    "terminal_rewards": "credit",
    "adapt_beta": "objective",
    "kl_divergence": "objective",
    "kl_penalized_rewards": "objective",
    "optimal_policy": "objective",
    "per_token_kl": "objective",
    "regularized_objective": "objective",
    "kl_estimates": "kl_gradients",
    "kl_gradient_audit": "kl_gradients",
    "kl_to_go": "kl_gradients",
    "sequence_kl_gradient_audit": "kl_gradients",
    "aggregate": "losses",
    "clipped_policy_loss": "losses",
    "clipped_value_loss": "losses",
    "entropy": "losses",
    "freeze": "losses",
    "ppo_loss": "losses",
    "preference_loss": "losses",
}
_MODULES = (
    "credit",
    "environment",
    "kl_gradients",
    "logprobs",
    "losses",
    "mdp",
    "objective",
    "plots",
    "ppo",
    "reinforce",
    "toy",
)

__all__ = sorted([*_HOME, *_MODULES])


def __getattr__(name):
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'rltokens' has no attribute {name!r}")
    try:
        module = import_module(f"rltokens.{_HOME.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "rltokens":
            raise
        raise ImportError(f"rltokens.{name} needs {error.name}: pip install {error.name}") from error
    return getattr(module, name) if name in _HOME else module


def __dir__():
    return __all__
