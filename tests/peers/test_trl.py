"""Beside TRL, whose losses are methods of its trainers."""

import os
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

import rltokens
from peers.batches import draw, peer, unbiased

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
trl_ppo = peer("trl.experimental.ppo.ppo_trainer")
trl_utils = peer("trl.trainer.utils")
trl = peer("trl")
torch = peer("torch")

SEEDS = range(5)
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(params=SEEDS)
def batch(request):
    return draw(request.param)


def tensor(array, gradient=False):
    return torch.tensor(array, requires_grad=gradient)


def close(ours, theirs):
    ours, theirs = (x.detach().numpy() if hasattr(x, "detach") else x for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, **TOLERANCE)


# --- Log-probs and entropy -----------------------------------------------------------------------


def test_token_logprobs_agrees(batch):
    theirs = trl_utils.selective_log_softmax(tensor(batch.logits), tensor(batch.tokens))
    close(rltokens.token_logprobs(batch.logits, batch.tokens, batch.mask), theirs * tensor(batch.mask))


def test_token_logprobs_agrees_where_a_forbidden_token_is_drawn(batch):
    logits = batch.logits.copy()
    np.put_along_axis(logits[0], batch.tokens[0][:, None], -np.inf, axis=-1)
    theirs = trl_utils.selective_log_softmax(tensor(logits), tensor(batch.tokens))
    ours = rltokens.token_logprobs(logits, batch.tokens, np.ones_like(batch.mask))
    np.testing.assert_array_equal(ours[0], -np.inf)
    close(ours, theirs)


def test_token_logprobs_of_trl_is_nan_where_every_token_is_forbidden():
    logits, tokens = np.full((1, 1, 3), -np.inf), np.array([[1]])
    np.testing.assert_array_equal(rltokens.token_logprobs(logits, tokens, [[1]]), [[-np.inf]])
    assert trl_utils.selective_log_softmax(tensor(logits), tensor(tokens)).isnan().all()


def test_token_logprobs_of_trl_needs_an_id_at_padding():
    logits, tokens = np.zeros((1, 2, 3)), np.array([[1, -100]])
    close(rltokens.token_logprobs(logits, tokens, [[1, 0]]), [[-np.log(3), 0.0]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        trl_utils.selective_log_softmax(tensor(logits), tensor(tokens))


def test_entropy_agrees_and_its_gradient_too(batch):
    ours, theirs = (tensor(batch.logits, gradient=True) for _ in range(2))
    weights = tensor(batch.rewards)
    (rltokens.entropy(ours) * weights).sum().backward()
    (trl_utils.entropy_from_logits(theirs) * weights).sum().backward()
    close(rltokens.entropy(ours), trl_utils.entropy_from_logits(theirs))
    close(ours.grad, theirs.grad)


def test_entropy_of_trl_is_nan_where_a_token_is_forbidden(batch):
    logits = tensor(batch.logits)
    forbidding = torch.cat([logits, torch.full_like(logits[..., :1], -torch.inf)], dim=-1)
    close(rltokens.entropy(forbidding), trl_utils.entropy_from_logits(logits))
    assert trl_utils.entropy_from_logits(forbidding).isnan().all()


# --- Means and whitening -------------------------------------------------------------------------


def test_masked_mean_agrees(batch):
    theirs = trl_ppo.masked_mean(tensor(batch.rewards), tensor(batch.mask))
    close(rltokens.masked_mean(batch.rewards, batch.mask), theirs)


@pytest.mark.parametrize("shift_mean", [True, False])
def test_masked_whiten_of_trl_has_ddof_1_and_leaves_padding(batch, shift_mean):
    mean = rltokens.masked_mean(batch.rewards, batch.mask)
    ours = rltokens.masked_whiten(batch.rewards, batch.mask) * unbiased(batch.mask, batch.rewards)
    mask = tensor(batch.mask).double()  # of whole numbers, TRL would take n / (n - 1) in float32
    theirs = trl_ppo.masked_whiten(tensor(batch.rewards), mask, shift_mean).numpy()
    moved = 0 if shift_mean else mean
    close(np.where(batch.mask == 1, ours + moved, 0), theirs * batch.mask)
    std = np.sqrt(batch.rewards[batch.mask == 1].var(ddof=1) + 1e-8)
    close(((batch.rewards - mean) / std + moved)[batch.mask == 0], theirs[batch.mask == 0])


def test_means_of_trl_are_nan_without_a_token_and_whitening_with_one():
    x, none, one = np.array([[3.0, 5.0]]), np.array([[0, 0]]), np.array([[1, 0]])
    assert rltokens.masked_mean(x, none) == 0
    assert trl_ppo.masked_mean(tensor(x), tensor(none)).isnan()
    np.testing.assert_array_equal(rltokens.masked_whiten(x, one), [[0.0, 0.0]])
    assert trl_ppo.masked_whiten(tensor(x), tensor(one)).isnan().all()
    with pytest.raises(ValueError, match="mask is zero"):
        trl_ppo.masked_whiten(tensor(x), tensor(none))


def test_means_of_trl_let_a_nan_at_padding_through(batch):
    x = np.where(batch.mask == 1, batch.rewards, np.nan)
    assert rltokens.masked_mean(x, batch.mask) == rltokens.masked_mean(batch.rewards, batch.mask)
    assert trl_ppo.masked_mean(tensor(x), tensor(batch.mask)).isnan()


# --- Losses --------------------------------------------------------------------------------------


def trainer(**settings):
    """What TRL's losses read of the trainer whose method they are; nothing is trained."""
    accelerator = SimpleNamespace(
        gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    return SimpleNamespace(
        accelerator=accelerator,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, center_rewards_coefficient=None),
        model=SimpleNamespace(training=False),
        _metrics={"eval": defaultdict(list)},
        _total_train_tokens=0,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        epsilon_low=0.2,
        epsilon_high=0.2,
        use_vllm=False,
        **{"beta": 0.0, **settings},
    )


def trl_loss(kind, batch, logp, extra, **settings):
    """The loss of a trainer whose model gives the tokens the log-probs `logp`."""
    stand_in = trainer(**settings)
    scored = logp, torch.zeros_like(logp), None
    stand_in._get_per_token_logps_and_entropies = lambda *args, **kwargs: scored
    mask = tensor(batch.mask)
    inputs = {
        "prompt_ids": mask[:, :0],
        "prompt_mask": mask[:, :0],
        "completion_ids": tensor(batch.tokens),
        "completion_mask": mask,
        **extra,
    }
    return kind._compute_loss(stand_in, None, inputs)


def grpo_loss(batch, logp, **settings):
    extra = {
        "old_per_token_logps": tensor(batch.logp_old),
        "ref_per_token_logps": tensor(batch.values),  # any numbers near logp's size will do
        "advantages": tensor(batch.scores),
    }
    return trl_loss(trl.GRPOTrainer, batch, logp, extra, **settings)


def our_loss(batch, logp, mode):
    advantages = np.repeat(batch.scores[:, None], batch.mask.shape[1], axis=1)
    arrays = (tensor(x) for x in (batch.logp_old, advantages, batch.mask))
    return rltokens.clipped_policy_loss(logp, *arrays, clip=0.2, mode=mode)


LONGEST = 32
OUR_MODES = {
    "bnpo": "token-mean",
    "grpo": "sequence-mean",
    "luspo": "sequence-sum",
    "dr_grpo": "sequence-sum",
}


@pytest.mark.parametrize("empty_row", [False, True])
@pytest.mark.parametrize("loss_type", OUR_MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_clipped_policy_loss_agrees_up_to_empty_rows_and_the_constant_of_dr_grpo(seed, loss_type, empty_row):
    batch = draw(seed, empty_row=empty_row)
    ours, theirs = (tensor(batch.logp, gradient=True) for _ in range(2))
    our = our_loss(batch, ours, OUR_MODES[loss_type])
    if loss_type != "bnpo":  # TRL's means over rows count empty rows, as zeros
        our = our * batch.mask.any(axis=1).mean()
    if loss_type == "dr_grpo":  # a sum over tokens, divided by the longest length allowed
        our = our / LONGEST
    their = grpo_loss(batch, theirs, loss_type=loss_type, max_completion_length=LONGEST)
    close(our, their)
    our.backward()
    their.backward()
    close(ours.grad, theirs.grad)


def test_clipped_policy_loss_of_trl_may_add_k3_to_the_loss(batch):
    logp = tensor(batch.logp)
    _, _, k3 = rltokens.kl_estimates(batch.logp, batch.values)
    ours = our_loss(batch, logp, "token-mean") + 0.1 * rltokens.masked_mean(k3, batch.mask)
    close(ours, grpo_loss(batch, logp, loss_type="bnpo", beta=0.1))


def test_clipped_policy_loss_of_trl_in_rloo_has_one_ratio_a_response(batch):
    # As if a response were a single token: ours on (B, 1). Empty rows count, with ratio 1.
    logp = tensor(batch.logp)
    totals, totals_old = (
        tensor((x * batch.mask).sum(axis=1, keepdims=True)) for x in (batch.logp, batch.logp_old)
    )
    advantages = tensor(batch.scores[:, None])
    ours = rltokens.clipped_policy_loss(totals, totals_old, advantages, torch.ones_like(totals))
    extra = {"old_logps": totals_old[:, 0], "advantages": tensor(batch.scores)}
    close(ours, trl_loss(trl.RLOOTrainer, batch, logp, extra))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_preference_loss_agrees(batch, scale):
    chosen, rejected = (scale * tensor(x) for x in (batch.values, batch.rewards))
    logits = torch.cat([chosen.flatten(), rejected.flatten()])[:, None]
    inputs = {"attention_mask": tensor(batch.mask)}
    theirs = trl.RewardTrainer.compute_loss(
        trainer(), lambda **inputs: SimpleNamespace(logits=logits), inputs
    )
    close(rltokens.preference_loss(chosen, rejected), theirs)
