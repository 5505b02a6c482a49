"""Beside rlax, whose functions take one sequence without padding, as jax arrays."""

import numpy as np
import pytest

import rltokens
from peers.batches import draw, peer

rlax = peer("rlax")
jax = peer("jax")
torch = peer("torch")

jax.config.update("jax_enable_x64", True)  # rlax computes in the precision of its input

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}
GAMMA, LAM = 0.9, 0.8


@pytest.fixture(params=range(3))  # jax compiles anew for each length
def batch(request):
    return draw(request.param)


def close(ours, theirs):
    ours = ours.detach().numpy() if hasattr(ours, "detach") else ours
    np.testing.assert_allclose(ours, np.asarray(theirs), **TOLERANCE)


def rows_of(batch):
    """The real positions of each row that has any."""
    return [(b, np.flatnonzero(row)) for b, row in enumerate(batch.mask) if row.any()]


def rlax_gae(rewards, values, value_after, gamma=GAMMA, lam=LAM):
    values = np.append(values, value_after)
    return rlax.truncated_generalized_advantage_estimation(rewards, np.full(len(rewards), gamma), lam, values)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (0.99, 1.0), (0.9, 0.0)])
def test_gae_agrees_on_the_real_tokens_of_each_row(batch, gamma, lam):
    advantages, returns = rltokens.gae(batch.rewards, batch.values, batch.mask, gamma, lam, batch.scores)
    for b, real in rows_of(batch):
        rewards, values = batch.rewards[b, real], batch.values[b, real]
        theirs = rlax_gae(rewards, values, batch.scores[b], gamma, lam)
        close(advantages[b, real], theirs)
        close(returns[b, real], theirs + values)


def test_gae_agrees_with_the_lambda_return_less_the_value(batch):
    _, returns = rltokens.gae(batch.rewards, batch.values, batch.mask, GAMMA, LAM, batch.scores)
    for b, real in rows_of(batch):
        next_values = np.append(batch.values[b, real][1:], batch.scores[b])
        theirs = rlax.lambda_returns(batch.rewards[b, real], np.full(len(real), GAMMA), next_values, LAM)
        close(returns[b, real], theirs)


def test_gae_of_rlax_ends_a_sequence_by_a_discount_of_0(batch):
    # Where ours has no bootstrap value: then it does not matter what value stands after the last token.
    advantages, _ = rltokens.gae(batch.rewards, batch.values, batch.mask, GAMMA, LAM)
    for b, real in rows_of(batch):
        discounts = np.append(np.full(len(real) - 1, GAMMA), 0.0)
        values = np.append(batch.values[b, real], 99.0)
        theirs = rlax.truncated_generalized_advantage_estimation(
            batch.rewards[b, real], discounts, LAM, values
        )
        close(advantages[b, real], theirs)


def test_gae_of_rlax_knows_no_mask(batch):
    # Given a padded row it takes padding for tokens, as ours does under a mask of ones.
    ours, _ = rltokens.gae(batch.rewards, batch.values, np.ones_like(batch.mask), GAMMA, LAM)
    for b in range(len(batch.mask)):
        close(ours[b], rlax_gae(batch.rewards[b], batch.values[b], 0.0))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_returns_to_go_agrees(batch, gamma):
    ours = rltokens.returns_to_go(batch.rewards, batch.mask, gamma)
    for b, real in rows_of(batch):
        theirs = rlax.discounted_returns(batch.rewards[b, real], np.full(len(real), gamma), 0.0)
        close(ours[b, real], theirs)


def test_clipped_policy_loss_agrees_in_its_token_mean(batch):
    real = batch.mask == 1
    logp = torch.tensor(batch.logp, requires_grad=True)
    others = (torch.tensor(x) for x in (batch.logp_old, batch.advantages, batch.mask))
    ours = rltokens.clipped_policy_loss(logp, *others, clip=0.2)
    ours.backward()

    def theirs(logp):
        ratios = jax.numpy.exp(logp - batch.logp_old[real])
        return rlax.clipped_surrogate_pg_loss(ratios, batch.advantages[real], 0.2)

    value, gradient = jax.value_and_grad(theirs)(batch.logp[real])
    close(ours, value)
    close(logp.grad[torch.tensor(real)], gradient)
    assert not logp.grad[torch.tensor(~real)].any()


def test_clipped_value_loss_agrees_where_the_clip_is_wide(batch):
    real = batch.mask == 1
    arrays = (torch.tensor(x) for x in (batch.values, batch.values_old, batch.rewards, batch.mask))
    ours = rltokens.clipped_value_loss(*arrays, clip=1e9)
    close(ours, rlax.l2_loss(batch.values[real], batch.rewards[real]).mean())


def test_importance_ratios_agrees(batch):
    real = batch.mask == 1
    logits_old = np.roll(batch.logits, 1, axis=0)
    logp, logp_old = (
        rltokens.token_logprobs(z, batch.tokens, batch.mask) for z in (batch.logits, logits_old)
    )
    theirs = rlax.categorical_importance_sampling_ratios(
        batch.logits[real], logits_old[real], batch.tokens[real]
    )
    close(rltokens.importance_ratios(logp, logp_old, batch.mask)[real], theirs)


@pytest.mark.parametrize("forbidden", [False, True])
def test_entropy_agrees_and_its_gradient_too_also_where_a_token_is_forbidden(batch, forbidden):
    z = batch.logits.reshape(-1, batch.logits.shape[-1]).copy()
    if forbidden:
        z[::2, 0] = -np.inf
    logits = torch.tensor(z, requires_grad=True)
    ours = rltokens.entropy(logits).mean()
    ours.backward()
    theirs, gradient = jax.value_and_grad(lambda logits: -rlax.entropy_loss(logits, np.ones(len(z))))(z)
    close(ours, theirs)
    close(logits.grad, gradient)


@pytest.mark.parametrize("forbidden", ["none", "in both", "in q"])
def test_kl_divergence_agrees(batch, forbidden):
    p, q = batch.logits, np.roll(batch.logits, 1, axis=0)
    p, q = p.copy(), q.copy()
    if forbidden != "none":
        q[..., 0] = -np.inf
    if forbidden == "in both":
        p[..., 0] = -np.inf
    ours = rltokens.kl_divergence(*(np.exp(rltokens.log_softmax(z)) for z in (p, q)))
    close(ours, rlax.categorical_kl_divergence(p, q))
    assert np.isinf(ours).all() == (forbidden == "in q")
