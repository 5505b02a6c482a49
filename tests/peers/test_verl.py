"""Beside verl, whose functions take torch tensors and a mask as ours do."""

from types import SimpleNamespace

import numpy as np
import pytest

import rltokens
from peers.batches import draw, peer, unbiased

verl = peer("verl.trainer.ppo.core_algos")
verl_torch = peer("verl.utils.torch_functional")
verl_trainer = peer("verl.trainer.ppo.ray_trainer")
verl_config = peer("verl.workers.config")
torch = peer("torch")

SEEDS = range(5)
# Our names of the three ways to make a number of a (B, T) array, and verl's.
MODES = {
    "token-mean": "token-mean",
    "sequence-mean": "seq-mean-token-mean",
    "sequence-sum": "seq-mean-token-sum",
}
# verl divides by (a count + 1e-8), which shows in the eighth digit.
TOLERANCE = {"rtol": 1e-7, "atol": 1e-8}
WITHOUT_DUAL_CLIP = 1e30


@pytest.fixture(params=SEEDS)
def batch(request):
    return draw(request.param)


def tensor(array, gradient=False):
    return torch.tensor(array, requires_grad=gradient)


def close(ours, theirs, **tolerance):
    ours, theirs = (x.detach().numpy() if hasattr(x, "detach") else x for x in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, **{**TOLERANCE, **tolerance})


def both_with_gradients(ours, theirs, at):
    """Each function's value and its gradient in the one array that both take."""
    results = []
    for function in (ours, theirs):
        x = tensor(at, gradient=True)
        value = function(x)
        value.backward()
        results.append((value, x.grad))
    return results


# --- Returns and advantages of tokens ------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.99, 1.0), (0.9, 0.0)])
def test_gae_agrees_in_its_returns(batch, gamma, lam):
    _, ours = rltokens.gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    _, theirs = verl_gae(batch, gamma, lam)
    close(ours, theirs * batch.mask)


def verl_gae(batch, gamma=0.9, lam=0.8, mask=None):
    mask = batch.mask if mask is None else mask
    arguments = tensor(batch.rewards), tensor(batch.values), tensor(mask)
    return (x.numpy() for x in verl.compute_gae_advantage_return(*arguments, gamma=gamma, lam=lam))


def test_gae_of_verl_is_whitened_with_ddof_1(batch):
    ours, _ = rltokens.gae(batch.rewards, batch.values, batch.mask, 0.9, 0.8)
    theirs, _ = verl_gae(batch)
    whitened = rltokens.masked_whiten(ours, batch.mask) * unbiased(batch.mask, ours)
    close(whitened, theirs * batch.mask)


def test_gae_of_verl_has_returns_at_masked_positions(batch):
    # There stands the value of the position plus the advantage of the next real token, 0 after the last.
    ours, returns = rltokens.gae(batch.rewards, batch.values, batch.mask, 0.9, 0.8)
    _, theirs = verl_gae(batch)
    carried = np.zeros_like(ours)
    for t in reversed(range(ours.shape[1] - 1)):
        carried[:, t] = np.where(batch.mask[:, t + 1] == 1, ours[:, t + 1], carried[:, t + 1])
    close(np.where(batch.mask == 1, returns, batch.values + carried), theirs)
    assert abs(theirs * (1 - batch.mask)).max() > 0.1  # where ours are 0


def test_gae_of_verl_has_advantages_at_padding(batch):
    # Whitening moves the 0 at padding to -mean / std.
    ours, _ = rltokens.gae(batch.rewards, batch.values, batch.mask, 0.9, 0.8)
    theirs, _ = verl_gae(batch)
    after_the_end = np.cumsum(batch.mask[:, ::-1], axis=1)[:, ::-1] == 0
    real = ours[batch.mask == 1]
    expected = -real.mean() / np.sqrt(real.var(ddof=1) + 1e-8)
    close(np.full(after_the_end.sum(), expected), theirs[after_the_end])


def test_gae_of_verl_lets_a_nan_at_padding_through(batch):
    values = np.where(batch.mask == 1, batch.values, np.nan)
    ours = rltokens.gae(batch.rewards, values, batch.mask, 0.9, 0.8)
    close(ours, rltokens.gae(batch.rewards, batch.values, batch.mask, 0.9, 0.8))
    _, theirs = verl_gae(batch._replace(values=values))
    before_padding = np.cumsum(1 - batch.mask[:, ::-1], axis=1)[:, ::-1] > 0
    np.testing.assert_array_equal(np.isnan(theirs), before_padding)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_to_go_agrees(batch, gamma):
    # REINFORCE++ skips a hole as we do, also in its returns.
    _, theirs = verl.compute_reinforce_plus_plus_outcome_advantage(
        tensor(batch.rewards), tensor(batch.mask), config=SimpleNamespace(gamma=gamma)
    )
    close(rltokens.returns_to_go(batch.rewards, batch.mask, gamma), theirs)


# --- Means and whitening -------------------------------------------------------------------------


def test_masked_mean_agrees(batch):
    x = np.where(batch.mask == 1, batch.rewards, np.nan)
    close(rltokens.masked_mean(x, batch.mask), verl_torch.masked_mean(tensor(x), tensor(batch.mask)))
    empty = np.zeros_like(batch.mask)
    assert rltokens.masked_mean(x, empty) == verl_torch.masked_mean(tensor(x), tensor(empty)) == 0


@pytest.mark.parametrize("shift_mean", [True, False])
def test_masked_whiten_of_verl_has_ddof_1_and_leaves_padding(batch, shift_mean):
    mean = rltokens.masked_mean(batch.rewards, batch.mask)
    ours = rltokens.masked_whiten(batch.rewards, batch.mask) * unbiased(batch.mask, batch.rewards)
    theirs = verl_torch.masked_whiten(tensor(batch.rewards), tensor(batch.mask), shift_mean).numpy()
    moved = 0 if shift_mean else mean
    close(np.where(batch.mask == 1, ours + moved, 0), theirs * batch.mask)
    std = np.sqrt(batch.rewards[batch.mask == 1].var(ddof=1) + 1e-8)
    close(((batch.rewards - mean) / std + moved)[batch.mask == 0], theirs[batch.mask == 0])


@pytest.mark.parametrize("tokens", [0, 1])
def test_masked_whiten_of_verl_needs_two_tokens(tokens):
    x, mask = np.array([[3.0, 5.0]]), np.array([[tokens, 0]])
    np.testing.assert_array_equal(rltokens.masked_whiten(x, mask), [[0.0, 0.0]])
    with pytest.raises(ValueError, match="mask"):
        verl_torch.masked_whiten(tensor(x), tensor(mask))


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_agrees(batch, mode):
    mask = tensor(batch.mask)
    (ours, gradient), (theirs, their_gradient) = both_with_gradients(
        lambda loss: rltokens.aggregate(loss, mask, mode),
        lambda loss: verl.agg_loss(loss, mask, MODES[mode]),
        batch.rewards,
    )
    close(ours, theirs)
    close(gradient, their_gradient)


def test_aggregate_of_verl_divides_by_the_width_in_one_more_mode(batch):
    # Dr. GRPO's constant, so that no length of a response enters: by default the padded width of the batch.
    loss, mask = tensor(batch.rewards), tensor(batch.mask)
    ours = rltokens.aggregate(loss, mask, "sequence-sum")
    close(ours / mask.shape[1], verl.agg_loss(loss, mask, "seq-mean-token-sum-norm"))
    close(ours / 1000, verl.agg_loss(loss, mask, "seq-mean-token-sum-norm", loss_scale_factor=1000))


def test_aggregate_of_verl_has_a_sum_over_tokens(batch):
    loss, mask = tensor(batch.rewards), tensor(batch.mask)
    close(rltokens.aggregate(loss, mask, "token-mean") * mask.sum(), verl.agg_loss(loss, mask, "token-sum"))


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_of_verl_is_nan_without_a_token(mode):
    loss, mask = torch.ones(2, 3, dtype=torch.float64), torch.zeros(2, 3)
    assert rltokens.aggregate(loss, mask, mode) == 0
    assert verl.agg_loss(loss, mask, MODES[mode]).isnan()


@pytest.mark.parametrize("mode", MODES)
def test_aggregate_of_verl_lets_a_nan_at_padding_through_in_the_means_over_rows(batch, mode):
    mask = tensor(batch.mask)
    clean, dirty = (tensor(np.where(batch.mask == 1, batch.rewards, filler)) for filler in (0.0, np.nan))
    assert rltokens.aggregate(dirty, mask, mode) == rltokens.aggregate(clean, mask, mode)
    close(
        verl.agg_loss(dirty, mask, MODES[mode]),
        rltokens.aggregate(clean, mask, mode) if mode == "token-mean" else np.nan,
    )


# --- Losses --------------------------------------------------------------------------------------


def verl_policy_loss(batch, mode="token-mean", low=0.2, high=0.2, dual=WITHOUT_DUAL_CLIP):
    """verl's loss as a function of logp."""
    config = verl_config.ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=dual,
    )
    old, advantages, mask = tensor(batch.logp_old), tensor(batch.advantages), tensor(batch.mask)
    loss = verl.get_policy_loss_fn("vanilla")
    return lambda logp: loss(old, logp, advantages, mask, MODES[mode], config)[0]


def our_policy_loss(batch, mode="token-mean", clip=0.2, advantages=None):
    advantages = tensor(batch.advantages if advantages is None else advantages)
    old, mask = tensor(batch.logp_old), tensor(batch.mask)
    return lambda logp: rltokens.clipped_policy_loss(logp, old, advantages, mask, clip, mode)


@pytest.mark.parametrize("clip", [0.0, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("mode", MODES)
def test_clipped_policy_loss_agrees(batch, mode, clip):
    ours, theirs = our_policy_loss(batch, mode, clip), verl_policy_loss(batch, mode, clip, clip)
    (ours, gradient), (theirs, their_gradient) = both_with_gradients(ours, theirs, batch.logp)
    close(ours, theirs)
    close(gradient, their_gradient)


def test_clipped_policy_loss_of_verl_has_a_second_clip(batch):
    # A bad token's loss stops growing at three times its weight: as if its ratio were 3 at most.
    batch = batch._replace(logp_old=batch.logp + 4 * (batch.logp_old - batch.logp))
    capped = np.where(batch.advantages < 0, np.minimum(batch.logp, batch.logp_old + np.log(3)), batch.logp)
    theirs = verl_policy_loss(batch, dual=3.0)(tensor(batch.logp))
    close(our_policy_loss(batch)(tensor(capped)), theirs)
    assert our_policy_loss(batch)(tensor(batch.logp)) > theirs + 1e-3


def test_clipped_policy_loss_of_verl_may_clip_unevenly(batch):
    # The upper edge concerns tokens with a positive advantage alone, the lower one those with a negative.
    good = our_policy_loss(batch, clip=0.4, advantages=np.maximum(batch.advantages, 0))
    bad = our_policy_loss(batch, clip=0.1, advantages=np.minimum(batch.advantages, 0))
    (ours, gradient), (theirs, their_gradient) = both_with_gradients(
        lambda logp: good(logp) + bad(logp), verl_policy_loss(batch, low=0.1, high=0.4), batch.logp
    )
    close(ours, theirs)
    close(gradient, their_gradient)


def test_clipped_policy_loss_of_verl_holds_log_ratios_within_20():
    batch = draw(0)
    batch = batch._replace(logp=batch.logp_old + 25, advantages=-np.ones_like(batch.logp))
    theirs = verl_policy_loss(batch)(tensor(batch.logp))
    close(np.exp(20.0), theirs)
    close(our_policy_loss(batch)(tensor(batch.logp_old + 20)), theirs)
    close(our_policy_loss(batch)(tensor(batch.logp)), np.exp(25.0))


@pytest.mark.parametrize("clip", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("mode", MODES)
def test_clipped_value_loss_agrees(batch, mode, clip):
    returns, old, mask = tensor(batch.rewards), tensor(batch.values_old), tensor(batch.mask)
    (ours, gradient), (theirs, their_gradient) = both_with_gradients(
        lambda values: rltokens.clipped_value_loss(values, old, returns, mask, clip, mode),
        lambda values: verl.compute_value_loss(values, returns, old, mask, clip, MODES[mode])[0],
        batch.values,
    )
    close(ours, theirs)
    close(gradient, their_gradient)


@pytest.mark.parametrize("mode", MODES)
def test_ppo_loss_agrees_with_its_parts_put_together(batch, mode):
    tokens, mask = tensor(batch.tokens), tensor(batch.mask)
    logp_old, advantages = tensor(batch.logp_old), tensor(batch.advantages)
    values, old, returns = tensor(batch.values), tensor(batch.values_old), tensor(batch.rewards)

    def ours(logits):
        return rltokens.ppo_loss(
            logits, tokens, logp_old, advantages, values, old, returns, mask, c1=0.7, c2=0.03, mode=mode
        )[0]

    def theirs(logits):
        policy = verl_policy_loss(batch, mode)(verl_torch.logprobs_from_logits(logits, tokens))
        value, _ = verl.compute_value_loss(values, returns, old, mask, 0.2, MODES[mode])
        return policy + 0.7 * value - 0.03 * verl.compute_entropy_loss(logits, mask, MODES[mode])

    (ours, gradient), (theirs, their_gradient) = both_with_gradients(ours, theirs, batch.logits)
    close(ours, theirs)
    close(gradient, their_gradient)


# --- Log-probs and entropy -----------------------------------------------------------------------


def test_token_logprobs_agrees(batch):
    theirs = verl_torch.logprobs_from_logits(tensor(batch.logits), tensor(batch.tokens))
    close(rltokens.token_logprobs(batch.logits, batch.tokens, batch.mask), theirs * tensor(batch.mask))


def test_entropy_agrees(batch):
    logits = tensor(batch.logits)
    close(rltokens.entropy(logits), verl_torch.entropy_from_logits(logits))


def test_entropy_of_verl_is_nan_where_a_token_is_forbidden(batch):
    logits = tensor(batch.logits)
    forbidding = torch.cat([logits, torch.full_like(logits[..., :1], -torch.inf)], dim=-1)
    close(rltokens.entropy(forbidding), verl_torch.entropy_from_logits(logits))
    assert verl_torch.entropy_from_logits(forbidding).isnan().all()


def test_response_mask_agrees(batch):
    theirs = verl_torch.get_response_mask(tensor(batch.tokens), eos_token=1)
    np.testing.assert_array_equal(rltokens.response_mask(batch.tokens, eos=1), theirs.numpy())


# --- KL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "name"), enumerate(["k1", "k2", "k3"]))
def test_kl_estimates_agrees(batch, k, name):
    theirs = verl.kl_penalty(tensor(batch.logp), tensor(batch.logp_old), name)
    close(rltokens.kl_estimates(batch.logp, batch.logp_old)[k], theirs)


def test_kl_estimates_of_verl_stop_at_10_for_k3():
    logp, logp_ref = np.linspace(-40, 40, 81), np.zeros(81)
    _, _, k3 = rltokens.kl_estimates(np.clip(logp, -20, 20), logp_ref)
    close(np.minimum(k3, 10), verl.kl_penalty(tensor(logp), tensor(logp_ref), "k3"))
    assert rltokens.kl_estimates(logp, logp_ref)[2].max() > 1e17


@pytest.mark.parametrize("name", ["k1+", "k3+"])
def test_kl_estimates_of_verl_with_a_plus_have_the_gradient_of_k2(batch, name):
    # That gradient is the log-ratio, our k1; the value stays that of the estimate.
    logp = tensor(batch.logp, gradient=True)
    theirs = verl.kl_penalty(logp, tensor(batch.logp_old), name)
    theirs.sum().backward()
    k1, _, k3 = rltokens.kl_estimates(batch.logp, batch.logp_old)
    close(k1 if name == "k1+" else k3, theirs)
    close(k1, logp.grad)


def verl_penalty(batch, beta, target=1.0, horizon=100):
    """verl's rewards, and its beta afterwards."""
    arrays = {
        "response_mask": batch.mask,
        "token_level_scores": rltokens.terminal_rewards(batch.scores, batch.mask),
        "old_log_probs": batch.logp,
        "ref_log_prob": batch.logp_old,
    }
    data = verl_trainer.DataProto.from_dict(tensors={name: tensor(array) for name, array in arrays.items()})
    controller = verl.AdaptiveKLController(beta, target, horizon)
    data, _ = verl_trainer.apply_kl_penalty(data, controller)
    return data.batch["token_level_rewards"], controller.value


@pytest.mark.parametrize("beta", [0.0, 0.1, 2.0])
def test_kl_penalized_rewards_agrees(batch, beta):
    ours = rltokens.kl_penalized_rewards(batch.logp, batch.logp_old, batch.scores, batch.mask, beta)
    close(ours, verl_penalty(batch, beta)[0])


def test_kl_penalized_rewards_of_verl_reach_into_padding_without_the_trainer(batch):
    # `compute_rewards` knows no mask; the trainer's own step, above, has one.
    scores = rltokens.terminal_rewards(batch.scores, batch.mask)
    theirs = verl.compute_rewards(tensor(scores), tensor(batch.logp), tensor(batch.logp_old), 0.1).numpy()
    ours = rltokens.kl_penalized_rewards(batch.logp, batch.logp_old, batch.scores, batch.mask, 0.1)
    close(ours, theirs * batch.mask)
    close(-0.1 * (batch.logp - batch.logp_old)[batch.mask == 0], theirs[batch.mask == 0])


@pytest.mark.parametrize("observed", [0.0, 5.5, 6.0, 6.3, 100.0])
def test_adapt_beta_agrees(observed):
    controller = verl.AdaptiveKLController(0.1, 6.0, 10_000)
    controller.update(observed, 256)
    close(rltokens.adapt_beta(0.1, observed, 6.0, 256), controller.value)


def test_adapt_beta_of_verl_is_told_nats_per_token(batch):
    # Not per response, as its target is in Ziegler et al.; empty rows count as 0.
    log_ratio = (batch.logp - batch.logp_old) * batch.mask
    per_token = (log_ratio.sum(axis=1) / np.maximum(batch.mask.sum(axis=1), 1)).mean()
    target = 1.05 * per_token  # near what is observed, where the error is not clipped; may be negative there
    rows = len(batch.mask)
    _, beta = verl_penalty(batch, 0.1, target)
    close(0.1 * (1 + (per_token / target - 1) * rows / 100), beta)


# --- Groups --------------------------------------------------------------------------------------


@pytest.fixture(params=SEEDS)
def groups(request):
    """(N, G) scores, as (B, T) rewards with a mask, and each row's group."""
    rng = np.random.default_rng(request.param)
    scores = rng.normal(size=(4, int(rng.integers(2, 6))))
    mask = (np.arange(6) < rng.integers(1, 7, size=(scores.size, 1))).astype(np.int64)
    return scores, mask


def verl_groups(estimator, scores, mask, **options):
    """verl's advantage of each response, (N, G), after a look at how it is spread over the tokens."""
    index = np.repeat(np.arange(len(scores)), scores.shape[1])
    rewards = rltokens.terminal_rewards(scores.reshape(-1), mask)
    theirs, _ = verl.get_adv_estimator_fn(estimator)(tensor(rewards), tensor(mask), index=index, **options)
    np.testing.assert_array_equal(theirs, theirs[:, :1] * mask)
    return theirs[:, 0].numpy().reshape(scores.shape)


@pytest.mark.parametrize("estimator", ["rloo", "rloo_vectorized"])
def test_leave_one_out_advantages_agrees(groups, estimator):
    close(rltokens.leave_one_out_advantages(groups[0]), verl_groups(estimator, *groups))


# The vectorized estimator takes means and deviations in float32.
GRPO = pytest.mark.parametrize(("estimator", "digits"), [("grpo", 1e-8), ("grpo_vectorized", 1e-6)])


@GRPO
def test_group_normalized_advantages_of_verl_have_ddof_1(groups, estimator, digits):
    scores, _ = groups
    std, their_std = (scores.std(axis=1, ddof=ddof, keepdims=True) for ddof in (0, 1))
    corrected = rltokens.group_normalized_advantages(scores) * (std + 1e-6) / (their_std + 1e-6)
    close(corrected, verl_groups(estimator, *groups), rtol=digits, atol=digits)


@GRPO
def test_group_normalized_advantages_of_verl_may_go_undivided(groups, estimator, digits):
    # Dr. GRPO's advantage is leave-one-out up to a factor.
    size = groups[0].shape[1]
    undivided = verl_groups(estimator, *groups, norm_adv_by_std_in_grpo=False)
    close(
        rltokens.leave_one_out_advantages(groups[0]) * (size - 1) / size, undivided, rtol=digits, atol=digits
    )


def test_group_normalized_advantages_of_verl_show_rounding_where_scores_are_equal():
    scores, mask = np.full((2, 3), 0.1), np.ones((6, 2), dtype=np.int64)
    np.testing.assert_array_equal(rltokens.group_normalized_advantages(scores), np.zeros((2, 3)))
    close(np.zeros((2, 3)), verl_groups("grpo", scores, mask))
    rounded = np.float64(np.float32(0.1))  # the vectorized mean; what it is off by is divided by 1e-6
    close((scores - rounded) / 1e-6, verl_groups("grpo_vectorized", scores, mask))


def test_groups_of_one_keep_their_score_in_verl():
    scores, mask = np.array([[3.0], [-1.0]]), np.ones((2, 2), dtype=np.int64)
    np.testing.assert_array_equal(rltokens.group_normalized_advantages(scores), np.zeros((2, 1)))
    with pytest.raises(ValueError, match="scores"):
        rltokens.leave_one_out_advantages(scores)
    close(scores / (1 + 1e-6), verl_groups("grpo", scores, mask))
    close(scores, verl_groups("rloo", scores, mask))
    close(np.zeros((2, 1)), verl_groups("rloo_vectorized", scores, mask))
