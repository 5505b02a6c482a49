"""Chapter 6's functions: hand numbers, each side of each clip, and autograd on batches without padding."""

import copy
import math

import pytest

import rltokens

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("error")

MODES = ("token-mean", "sequence-mean", "sequence-sum")
modes = pytest.mark.parametrize("mode", MODES)

# Holes at the start and inside, nothing real, nothing masked, the last token alone, padding.
MASK = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 0, 0, 0]])
REAL = MASK == 1
SHAPE = tuple(MASK.shape)
VOCAB_SIZE = 4


def draw(seed=0, dtype=torch.float64):
    """A ragged batch whose ratios and values fall on both sides of their clips."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)

    logp = normal(*SHAPE) - 2
    values = normal(*SHAPE)
    return {
        "loss": normal(*SHAPE),
        "logp": logp,
        "logp_old": logp + normal(*SHAPE, scale=0.4),
        "advantages": normal(*SHAPE),
        "values": values,
        "values_old": values + normal(*SHAPE, scale=0.4),
        "returns": normal(*SHAPE),
        "logits": normal(*SHAPE, VOCAB_SIZE),
        "tokens": torch.randint(VOCAB_SIZE, SHAPE, generator=generator),
    }


def ppo(a, mask, mode):
    """Everything that ppo_loss gives, as one vector."""
    loss, parts = rltokens.ppo_loss(
        a["logits"],
        a["tokens"],
        a["logp_old"],
        a["advantages"],
        a["values"],
        a["values_old"],
        a["returns"],
        mask,
        clip=0.3,
        value_clip=0.1,
        c1=0.7,
        c2=0.05,
        mode=mode,
    )
    return torch.stack([loss, parts["policy"], parts["value"], parts["entropy"]])


MASKED = {
    "aggregate": lambda a, mask, mode: rltokens.aggregate(a["loss"], mask, mode),
    "clipped_policy_loss": lambda a, mask, mode: rltokens.clipped_policy_loss(
        a["logp"], a["logp_old"], a["advantages"], mask, 0.2, mode
    ),
    "clipped_value_loss": lambda a, mask, mode: rltokens.clipped_value_loss(
        a["values"], a["values_old"], a["returns"], mask, 0.2, mode
    ),
    "ppo_loss": ppo,
}
READS = {
    "aggregate": ["loss"],
    "clipped_policy_loss": ["logp", "logp_old", "advantages"],
    "clipped_value_loss": ["values", "values_old", "returns"],
    "ppo_loss": ["logits", "logp_old", "advantages", "values", "values_old", "returns"],
}
masked = pytest.mark.parametrize("name", MASKED)


def differentiable(arguments, names):
    return {key: x.clone().requires_grad_(key in names) for key, x in arguments.items()}


def value_and_gradients(name, arguments, mask, mode):
    given = differentiable(arguments, READS[name])
    value = MASKED[name](given, mask, mode)
    wanted = [given[key] for key in READS[name]]
    return value.detach(), torch.autograd.grad((value if value.ndim == 0 else value[0]), wanted)


def expand(mask, x):
    return (mask == 1).reshape(mask.shape + (1,) * (x.ndim - 2))


# --- Naive versions, row by row on what is real, without a mask ----------------------------------


def average(rows, mode):
    """Rows of per-token losses, a tensor for each non-empty row."""
    if mode == "token-mean":
        return torch.cat(rows).mean()
    totals = [row.mean() if mode == "sequence-mean" else row.sum() for row in rows]
    return sum(totals) / len(totals)


def rows_of(x):
    return [x[b][REAL[b]] for b in range(SHAPE[0]) if REAL[b].any()]


def naive_policy(logp, logp_old, advantages, clip):
    losses = []
    for now, old, advantage in zip(logp, logp_old, advantages, strict=True):
        ratio = torch.exp(now - old)
        clipped = (
            ratio if 1 - clip < ratio < 1 + clip else ratio.new_tensor(1 - clip if ratio < 1 else 1 + clip)
        )
        first, second = -advantage * ratio, -advantage * clipped
        losses.append(first if first >= second else second)
    return torch.stack(losses)


def naive_value(values, values_old, returns, clip):
    losses = []
    for value, old, target in zip(values, values_old, returns, strict=True):
        step = value - old
        near = value if abs(step) < clip else old + (clip if step > 0 else -clip)
        far = (value - target) ** 2 / 2
        losses.append(far if far >= (near - target) ** 2 / 2 else (near - target) ** 2 / 2)
    return torch.stack(losses)


def naive_entropy(logits):
    p = torch.softmax(logits, dim=-1)
    return -(p * p.log()).sum(dim=-1)


def naive(name, a, mode):
    rows = {key: rows_of(x) for key, x in a.items()}
    if name == "aggregate":
        return average(rows["loss"], mode)
    count = len(rows["loss"])
    if name == "clipped_policy_loss":
        return average(
            [
                naive_policy(rows["logp"][b], rows["logp_old"][b], rows["advantages"][b], 0.2)
                for b in range(count)
            ],
            mode,
        )
    if name == "clipped_value_loss":
        return average(
            [
                naive_value(rows["values"][b], rows["values_old"][b], rows["returns"][b], 0.2)
                for b in range(count)
            ],
            mode,
        )
    logp = [
        torch.log_softmax(z, dim=-1)[torch.arange(len(z)), y]
        for z, y in zip(rows["logits"], rows["tokens"], strict=True)
    ]
    policy = average(
        [naive_policy(logp[b], rows["logp_old"][b], rows["advantages"][b], 0.3) for b in range(count)], mode
    )
    value = average(
        [
            naive_value(rows["values"][b], rows["values_old"][b], rows["returns"][b], 0.1)
            for b in range(count)
        ],
        mode,
    )
    bonus = average([naive_entropy(z) for z in rows["logits"]], mode)
    return torch.stack([policy + 0.7 * value - 0.05 * bonus, policy, value, bonus])


# --- What holds for all losses over tokens -------------------------------------------------------


@masked
@modes
@pytest.mark.parametrize("seed", [0, 1])
def test_value_and_gradients_are_those_of_a_naive_version_that_never_sees_padding(name, mode, seed):
    arguments = draw(seed)
    value, gradients = value_and_gradients(name, arguments, MASK, mode)
    given = differentiable(arguments, READS[name])
    expected = naive(name, given, mode)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-14)
    wanted = [given[key] for key in READS[name]]
    for key, got, gradient in zip(
        READS[name],
        gradients,
        torch.autograd.grad(expected if expected.ndim == 0 else expected[0], wanted),
        strict=True,
    ):
        torch.testing.assert_close(
            got, gradient, rtol=1e-11, atol=1e-14, msg=lambda m, key=key: f"{key}: {m}"
        )
        assert got.abs().max() > 0  # nothing is detached inside


@masked
@modes
def test_gradcheck(name, mode):
    arguments = draw(2)

    def f(*inputs):
        return MASKED[name]({**arguments, **dict(zip(READS[name], inputs, strict=True))}, MASK, mode)

    inputs = [arguments[key].requires_grad_() for key in READS[name]]
    assert torch.autograd.gradcheck(f, inputs, fast_mode=name == "ppo_loss")


@masked
@modes
@pytest.mark.parametrize(("junk", "junk_id"), [(math.nan, 99), (math.inf, -1), (-math.inf, -(2**40))])
def test_padding_never_changes_a_value_or_a_gradient(name, mode, junk, junk_id):
    arguments = draw()
    soiled = {
        key: torch.where(expand(MASK, x), x, junk_id if key == "tokens" else junk)
        for key, x in arguments.items()
    }
    value, gradients = value_and_gradients(name, arguments, MASK, mode)
    got, soiled_gradients = value_and_gradients(name, soiled, MASK, mode)
    assert torch.equal(got, value)
    for key, clean, gradient in zip(READS[name], gradients, soiled_gradients, strict=True):
        assert torch.equal(gradient, clean), key
        assert (gradient[~REAL] == 0).all(), key


@masked
@modes
@pytest.mark.parametrize("junk", [0.0, math.nan])
def test_where_all_rows_are_empty_the_loss_is_zero_on_the_graph_with_gradient_zero(name, mode, junk):
    arguments = {key: x if key == "tokens" else x + junk for key, x in draw().items()}
    given = differentiable(arguments, READS[name])
    value = MASKED[name](given, 0 * MASK, mode)
    assert (value == 0).all()
    assert value.requires_grad
    for gradient in torch.autograd.grad(value.sum(), [given[key] for key in READS[name]]):
        assert (gradient == 0).all()


@masked
@modes
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_of_the_input_is_kept(name, mode, dtype):
    given = draw(dtype=dtype)
    wide = {key: x.double() if x.is_floating_point() else x for key, x in given.items()}
    value, gradients = value_and_gradients(name, given, MASK, mode)
    expected, _ = value_and_gradients(name, wide, MASK, mode)
    assert value.dtype == dtype
    assert all(gradient.dtype == dtype for gradient in gradients)
    error = 40 * torch.finfo(dtype).eps
    torch.testing.assert_close(value.double(), expected, rtol=error, atol=error)


@masked
@modes
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.bfloat16])
def test_masks_may_be_of_any_type(name, mode, dtype):
    arguments = draw()
    assert torch.equal(MASKED[name](arguments, MASK.to(dtype), mode), MASKED[name](arguments, MASK, mode))


@masked
@modes
def test_more_padding_and_the_order_of_the_rows_change_nothing(name, mode):
    arguments = draw()
    value = MASKED[name](arguments, MASK, mode)
    wider = {
        key: torch.cat([x, torch.full((SHAPE[0], 3, *x.shape[2:]), 9).to(x.dtype)], dim=1)
        for key, x in arguments.items()
    }
    padded_mask = torch.cat([MASK, torch.zeros(SHAPE[0], 3)], dim=1)
    torch.testing.assert_close(MASKED[name](wider, padded_mask, mode), value)
    order = torch.tensor([3, 0, 4, 2, 1])
    moved = MASKED[name]({key: x[order] for key, x in arguments.items()}, MASK[order], mode)
    torch.testing.assert_close(moved, value)


@masked
@modes
def test_a_batch_is_its_minibatches_weighed_by_what_they_hold(name, mode):
    """By tokens for token-mean, by non-empty rows for the others: then accumulated gradients are right."""
    arguments = draw()
    parts = [slice(0, 2), slice(2, 5)]
    counts = [int(MASK[i].sum()) if mode == "token-mean" else int(REAL[i].any(dim=1).sum()) for i in parts]
    values = [MASKED[name]({key: x[i] for key, x in arguments.items()}, MASK[i], mode) for i in parts]
    expected = sum(count * value for count, value in zip(counts, values, strict=True)) / sum(counts)
    torch.testing.assert_close(MASKED[name](arguments, MASK, mode), expected)


@masked
@modes
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_a_batch_without_rows_or_without_tokens(name, mode, shape):
    arguments = {key: x[: shape[0], : shape[1]] for key, x in draw().items()}
    assert (MASKED[name](arguments, torch.zeros(shape), mode) == 0).all()


@masked
def test_inputs_are_never_changed(name):
    arguments, mask = draw(), MASK.clone()
    copies = {key: x.clone() for key, x in arguments.items()}
    value_and_gradients(name, arguments, mask, "token-mean")
    assert torch.equal(mask, MASK)
    assert all(torch.equal(x, copies[key]) for key, x in arguments.items())


# --- aggregate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # Rows of sums 6 (three tokens), 6 (one token) and nothing.
        ("token-mean", 12 / 4),
        ("sequence-mean", (2 + 6) / 2),
        ("sequence-sum", (6 + 6) / 2),
    ],
)
def test_aggregate_by_hand(mode, expected):
    loss = torch.tensor([[1.0, 2.0, 3.0], [99.0, 6.0, 99.0], [99.0, 99.0, 99.0]], requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]])
    value = rltokens.aggregate(loss, mask, mode)
    assert value.item() == expected
    assert value.ndim == 0
    value.backward()
    weights = {
        "token-mean": [[1 / 4] * 3, [0, 1 / 4, 0]],
        "sequence-mean": [[1 / 6] * 3, [0, 1 / 2, 0]],
        "sequence-sum": [[1 / 2] * 3, [0, 1 / 2, 0]],
    }
    torch.testing.assert_close(loss.grad, torch.tensor([*weights[mode], [0, 0, 0]], dtype=torch.float32))


# --- clipped_policy_loss -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.5, 2.0, -2.4, 0.0),  # a good token, already 20 % likelier: enough
        (0.5, 2.0, -1.0, -1.0),  # a good token that has become rarer: full gradient
        (1.5, -2.0, 3.0, 3.0),  # a bad token that has become likelier: full gradient
        (0.5, -2.0, 1.6, 0.0),  # a bad token, already 20 % rarer: enough
        (1.1, 2.0, -2.2, -2.2),  # within the clip
        (0.9, -2.0, 1.8, 1.8),
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_four_cases_of_the_policys_clip(ratio, advantage, loss, slope):
    """Slope is that in logp, -A rho where the ratio itself counts."""
    logp = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    old, advantages = logp.new_tensor([[-1.0]]), logp.new_tensor([[advantage]])
    value = rltokens.clipped_policy_loss(logp, old, advantages, torch.ones(1, 1))
    value.backward()
    assert value.item() == pytest.approx(loss, abs=1e-12)
    assert logp.grad.item() == pytest.approx(slope, abs=1e-12)


@modes
@pytest.mark.parametrize("clip", [0, 0.2])
def test_before_the_first_step_its_gradient_is_that_of_reinforce(mode, clip):
    """The ratio is 1, and the gradient that of -A log pi: also with no room in the clip at all."""
    a = draw()
    logp, plain = a["logp"].clone().requires_grad_(), a["logp"].clone().requires_grad_()
    rltokens.clipped_policy_loss(logp, a["logp"], a["advantages"], MASK, clip, mode).backward()
    rltokens.aggregate(-a["advantages"] * plain, MASK, mode).backward()
    torch.testing.assert_close(logp.grad, plain.grad)


def test_with_a_wide_clip_the_policy_loss_is_the_plain_ratio():
    a = draw()
    value = rltokens.clipped_policy_loss(a["logp"], a["logp_old"], a["advantages"], MASK, clip=1e9)
    plain = -(a["advantages"] * (a["logp"] - a["logp_old"]).exp())[REAL].mean()
    torch.testing.assert_close(value, plain)


def test_the_defaults_of_the_losses():
    a = draw()
    torch.testing.assert_close(
        rltokens.clipped_policy_loss(a["logp"], a["logp_old"], a["advantages"], MASK),
        MASKED["clipped_policy_loss"](a, MASK, "token-mean"),
    )
    torch.testing.assert_close(
        rltokens.clipped_value_loss(a["values"], a["values_old"], a["returns"], MASK),
        MASKED["clipped_value_loss"](a, MASK, "token-mean"),
    )


def test_advantages_are_not_whitened_inside():
    a = draw()
    f = rltokens.clipped_policy_loss
    once, thrice = (f(a["logp"], a["logp"], k * a["advantages"], MASK) for k in (1, 3))
    torch.testing.assert_close(thrice, 3 * once)
    shifted = f(a["logp"], a["logp"], a["advantages"] + 5, MASK)
    torch.testing.assert_close(shifted, once - 5)


def test_a_token_that_the_policy_now_forbids_makes_no_nan():
    logp = torch.tensor([[-math.inf, -1.0]], requires_grad=True)
    for advantage in (1.0, -1.0):
        value = rltokens.clipped_policy_loss(
            logp, torch.tensor([[-1.0, -1.0]]), torch.full((1, 2), advantage), torch.ones(1, 2)
        )
        (gradient,) = torch.autograd.grad(value, logp)
        assert value.isfinite()
        assert gradient.isfinite().all()


# --- clipped_value_loss --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "slope"),
    [
        (0.5, 0.0, 1.0, 0.32, 0.0),  # went up towards the target, further than 0.2: enough
        (-0.5, 0.0, -1.0, 0.32, 0.0),  # the same downwards
        (0.5, 0.0, -1.0, 1.125, 1.5),  # went away from the target: full gradient
        (-0.5, 0.0, 1.0, 1.125, -1.5),
        (0.5, 0.0, 0.3, 0.02, 0.2),  # shot past the target: full gradient back
        (0.1, 0.0, 1.0, 0.405, -0.9),  # within the clip
        (3.1, 3.0, 1.0, 2.205, 2.1),  # values are clipped around the old ones, not around 0
        (1.0, 1.0, 1.0, 0.0, 0.0),
    ],
)
def test_the_cases_of_the_values_clip(value, old, target, loss, slope):
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    got = rltokens.clipped_value_loss(
        values, values.new_tensor([[old]]), values.new_tensor([[target]]), torch.ones(1, 1)
    )
    got.backward()
    assert got.item() == pytest.approx(loss, abs=1e-12)
    assert values.grad.item() == pytest.approx(slope, abs=1e-12)


def test_with_a_wide_clip_the_value_loss_is_half_the_squared_error():
    a = draw()
    got = rltokens.clipped_value_loss(a["values"], a["values_old"], a["returns"], MASK, clip=1e9)
    torch.testing.assert_close(got, 0.5 * ((a["values"] - a["returns"]) ** 2)[REAL].mean())


# --- entropy -------------------------------------------------------------------------------------


def test_entropy_by_hand():
    logits = torch.tensor(
        [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64
    ).log()
    got = rltokens.entropy(logits)
    torch.testing.assert_close(got, torch.tensor([1.5 * math.log(2), 0.0, math.log(3)], dtype=torch.float64))
    assert rltokens.entropy(torch.zeros(2, 3, 5)).shape == (2, 3)
    assert rltokens.entropy(torch.zeros(5)).shape == ()


def test_entropy_with_forbidden_tokens_is_that_without_them_and_so_is_the_gradient():
    free = draw()["logits"][0]
    few = free[:, [0, 2]].clone().requires_grad_()
    logits = free.clone()
    logits[:, [1, 3]] = -math.inf
    logits.requires_grad_()
    value, expected = rltokens.entropy(logits), naive_entropy(few)
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), few)
    torch.testing.assert_close(gradient[:, [0, 2]], expected_gradient)
    assert (gradient[:, [1, 3]] == 0).all()


def test_a_row_that_forbids_every_token_has_no_entropy_and_no_gradient():
    logits = torch.tensor([[-math.inf] * 3, [0.0, 0.0, 0.0]], requires_grad=True)
    value = rltokens.entropy(logits)
    assert value.tolist() == pytest.approx([0.0, math.log(3)])
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(gradient, torch.zeros(2, 3), atol=1e-7, rtol=0)


def test_entropy_gradcheck_and_a_shift_of_the_row():
    logits = draw()["logits"].requires_grad_()
    assert torch.autograd.gradcheck(rltokens.entropy, [logits])
    torch.testing.assert_close(rltokens.entropy(logits + 1e3), rltokens.entropy(logits))
    p = torch.softmax(logits, dim=-1)
    (gradient,) = torch.autograd.grad(rltokens.entropy(logits).sum(), logits)
    torch.testing.assert_close(gradient, -p * (p.log() + naive_entropy(logits)[..., None]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_logits_as_far_apart_as_the_dtype_allows(dtype):
    """Code that forbids a token by the dtype's least number: the difference overflows to -inf."""
    logits = torch.tensor([20.0, 20.0, torch.finfo(dtype).min], dtype=dtype, requires_grad=True)
    far = torch.tensor([torch.finfo(dtype).max, 0.0, torch.finfo(dtype).min], dtype=dtype, requires_grad=True)
    for z, expected in ((logits, math.log(2)), (far, 0.0)):
        value = rltokens.entropy(z)
        (gradient,) = torch.autograd.grad(value, z)
        assert value.item() == pytest.approx(expected, rel=1e-2)
        assert value.dtype == dtype
        assert gradient.isfinite().all()


# --- ppo_loss ------------------------------------------------------------------------------------


def test_ppo_loss_by_hand():
    """Tokens of probability 1/2, two in the first response and one in the second.

    Ratios 1: policy losses -1, -1 and -4. Values 0 with returns 1, 1 and 3: 1/2, 1/2 and 9/2. Entropy log 2.
    """
    mask = torch.tensor([[1, 1], [1, 0]])
    zeros, half = torch.zeros(2, 2), torch.full((2, 2), 0.5).log()
    expected = {
        "token-mean": (-2.0, 5.5 / 3, math.log(2)),
        "sequence-mean": (-2.5, 2.5, math.log(2)),
        "sequence-sum": (-3.0, 2.75, 1.5 * math.log(2)),
    }
    for mode, (policy, value, bonus) in expected.items():
        loss, parts = rltokens.ppo_loss(
            torch.zeros(2, 2, 2),
            torch.tensor([[0, 1], [1, 99]]),
            half,
            torch.tensor([[1.0, 1.0], [4.0, 99.0]]),
            zeros,
            zeros,
            torch.tensor([[1.0, 1.0], [3.0, 99.0]]),
            mask,
            mode=mode,
        )
        assert {key: part.item() for key, part in parts.items()} == pytest.approx(
            {"policy": policy, "value": value, "entropy": bonus}
        )
        assert loss.item() == pytest.approx(policy + 0.5 * value - 0.01 * bonus)


def test_the_defaults_of_ppo_loss():
    a = draw()
    keys = ("logits", "tokens", "logp_old", "advantages", "values", "values_old", "returns")
    loss, parts = rltokens.ppo_loss(*(a[key] for key in keys), MASK)
    logp = torch.log_softmax(a["logits"], dim=-1).gather(-1, a["tokens"][..., None])[..., 0]
    policy = rltokens.clipped_policy_loss(logp, a["logp_old"], a["advantages"], MASK, 0.2, "token-mean")
    value = rltokens.clipped_value_loss(a["values"], a["values_old"], a["returns"], MASK, 0.2, "token-mean")
    bonus = naive_entropy(a["logits"])[REAL].mean()
    torch.testing.assert_close(torch.stack([*parts.values()]), torch.stack([policy, value, bonus]))
    torch.testing.assert_close(loss, policy + 0.5 * value - 0.01 * bonus)


@modes
def test_the_parts_are_the_three_losses_unweighted(mode):
    a = draw()
    _, policy, value, bonus = ppo(a, MASK, mode)
    logp = torch.log_softmax(a["logits"], dim=-1).gather(-1, a["tokens"][..., None])[..., 0]
    torch.testing.assert_close(
        policy, rltokens.clipped_policy_loss(logp, a["logp_old"], a["advantages"], MASK, 0.3, mode)
    )
    torch.testing.assert_close(
        value, rltokens.clipped_value_loss(a["values"], a["values_old"], a["returns"], MASK, 0.1, mode)
    )
    torch.testing.assert_close(bonus, rltokens.aggregate(rltokens.entropy(a["logits"]), MASK, mode))


def test_forbidden_tokens_in_a_batch_make_no_nan():
    a = draw()
    a["logits"][:, :, 3] = -math.inf
    a["tokens"] = a["tokens"] % 3
    a["tokens"][2, 0] = 3  # drawn once, forbidden now
    value, gradients = value_and_gradients("ppo_loss", a, MASK, "token-mean")
    assert value.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32])
def test_ids_may_be_of_any_type(dtype):
    a = draw()
    expected = ppo(a, MASK, "token-mean")
    assert torch.equal(ppo({**a, "tokens": a["tokens"].to(dtype)}, MASK, "token-mean"), expected)


def test_a_step_down_the_loss_does_what_each_part_asks_for():
    """Good tokens likelier, values nearer to returns, entropy higher: no sign is turned round."""
    a = draw()
    a["logp_old"] = torch.log_softmax(a["logits"], dim=-1).gather(-1, a["tokens"][..., None])[..., 0]
    a["values_old"] = a["values"].clone()
    _, (z_step, *_, value_step, _, _) = value_and_gradients("ppo_loss", a, MASK, "token-mean")
    moved = {**a, "logits": a["logits"] - 1e-3 * z_step, "values": a["values"] - 1e-3 * value_step}
    before, after = ppo(a, MASK, "token-mean"), ppo(moved, MASK, "token-mean")
    assert after[0] < before[0]
    assert after[1] < before[1]
    assert after[2] < before[2]
    (bonus_step,) = torch.autograd.grad(
        rltokens.ppo_loss(
            z := a["logits"].clone().requires_grad_(),
            a["tokens"],
            a["logp_old"],
            0 * a["advantages"],
            a["values"],
            a["values_old"],
            a["returns"],
            MASK,
        )[0],
        z,
    )
    assert ppo({**a, "logits": a["logits"] - bonus_step}, MASK, "token-mean")[3] > before[3]


# --- preference_loss -----------------------------------------------------------------------------


def test_preference_loss_by_hand():
    # Odds of 3 : 1 for the chosen, 1 : 1, and 1 : 3: mean of log 4/3, log 2, log 4.
    chosen = torch.tensor([math.log(3), 2.0, 0.0], dtype=torch.float64)
    rejected = torch.tensor([0.0, 2.0, math.log(3)], dtype=torch.float64)
    got = rltokens.preference_loss(chosen, rejected)
    assert got.item() == pytest.approx(math.log(4 / 3 * 2 * 4) / 3, rel=1e-14)
    assert got.ndim == 0
    square = rltokens.preference_loss(chosen.repeat(2, 1), rejected.repeat(2, 1))
    assert square.item() == pytest.approx(got.item(), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_preference_loss_is_stable_for_any_difference(dtype):
    for difference, loss, slope in ((1e4, 0.0, 0.0), (-1e4, 1e4, -1.0), (0.0, math.log(2), -0.5)):
        chosen = torch.tensor([difference], dtype=dtype, requires_grad=True)
        rejected = torch.zeros(1, dtype=dtype, requires_grad=True)
        got = rltokens.preference_loss(chosen, rejected)
        got.backward()
        assert got.dtype == dtype
        assert got.item() == pytest.approx(loss, rel=1e-2, abs=1e-12)
        assert chosen.grad.item() == pytest.approx(slope, rel=1e-2, abs=1e-12)
        assert rejected.grad.item() == -chosen.grad.item()


def test_only_differences_count_and_gradients_check():
    generator = torch.Generator().manual_seed(0)
    chosen, rejected = torch.randn(2, 3, 2, dtype=torch.float64, generator=generator)
    f = rltokens.preference_loss
    torch.testing.assert_close(f(chosen + 7, rejected + 7), f(chosen, rejected))
    expected = -torch.log(1 / (1 + torch.exp(rejected - chosen))).mean()
    torch.testing.assert_close(f(chosen, rejected), expected)
    assert torch.autograd.gradcheck(f, [chosen.requires_grad_(), rejected.requires_grad_()])


def test_no_pairs_no_loss():
    chosen = torch.zeros(0, requires_grad=True)
    loss = rltokens.preference_loss(chosen, torch.zeros(0))
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, chosen)[0].shape == (0,)


# --- freeze --------------------------------------------------------------------------------------


class Tied(torch.nn.Module):
    """Embedding and head share their weight, as in many language models; there are buffers and dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.gru = torch.nn.GRU(3, 3, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(3)
        self.dropout = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        hidden, _ = self.gru(self.embedding(tokens))
        hidden = self.dropout(self.norm(hidden.transpose(1, 2)).transpose(1, 2))
        return self.head(hidden) * self.scale


class Remembering(torch.nn.Module):
    """Keeps results of its last pass in training, alone, in containers and in a buffer: all on the graph."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.last, self.state, self.cache = None, (), {}
        self.bias = torch.zeros(3, requires_grad=True)  # a tensor, but neither parameter nor buffer
        self.register_buffer("running", torch.zeros(3))

    def forward(self, x):
        y = self.layer(x) + self.bias
        if self.training:
            self.last, self.state = y, (y * 2, [y * 3])
            self.cache["key"], self.cache["self"] = y * 4, self.cache
            self.running = 0.9 * self.running.detach() + y.mean(dim=0)
        return y + self.running


def weight_normed():
    with pytest.warns(FutureWarning):
        return torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))


def partly_frozen():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    model[1].eval()
    return model


X3, IDS = torch.ones(4, 3), torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]])
MODELS = {
    "tied": (Tied, IDS),
    "partly frozen": (partly_frozen, X3),
    "weight norm": (weight_normed, X3),
    "parametrized weight norm": (
        lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(3, 3)),
        X3,
    ),
    "spectral norm": (lambda: torch.nn.utils.spectral_norm(torch.nn.Linear(3, 3)), X3),
    "remembering": (Remembering, X3),
}
models = pytest.mark.parametrize("name", MODELS)


def build(name):
    """A model that has been used: after a forward and a backward pass."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make()
    model(inputs).sum().backward()
    return model, inputs


def tensors_of(model):
    """Every tensor that any module of the model holds on to, gradients too."""
    found, left, seen = [], [vars(module) for module in model.modules()], set()
    while left:
        x = left.pop()
        if isinstance(x, torch.Tensor):
            found += [x] if x.grad_fn is not None or x.grad is None else [x, x.grad]
        elif isinstance(x, dict | list | tuple) and id(x) not in seen:
            seen.add(id(x))
            left += list(x.values()) if isinstance(x, dict) else list(x)
    return found


def storages(model):
    return {x.untyped_storage().data_ptr() for x in tensors_of(model) if x.numel()}


@models
def test_frozen_gives_what_the_model_gives_in_eval_mode(name):
    model, inputs = build(name)
    frozen = rltokens.freeze(model)
    assert type(frozen) is type(model)
    assert not any(module.training for module in frozen.modules())
    model.eval()
    expected = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(frozen.state_dict(), expected, rtol=0, atol=0)
    torch.testing.assert_close(frozen(inputs), model(inputs).detach())


@models
def test_frozen_shares_no_storage_and_needs_no_gradient(name):
    model, inputs = build(name)
    frozen = rltokens.freeze(model)
    assert storages(model)
    assert not storages(model) & storages(frozen)
    assert not any(x.requires_grad or x.grad is not None for x in tensors_of(frozen))
    assert not frozen(inputs).requires_grad


@models
def test_the_original_is_untouched(name):
    model, _ = build(name)
    names = list(model.state_dict())
    state = {key: x.clone() for key, x in model.state_dict().items()}
    held = [(id(x), x.requires_grad, x.is_leaf) for x in tensors_of(model)]
    training = [module.training for module in model.modules()]
    gradients = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    rltokens.freeze(model)
    assert [(id(x), x.requires_grad, x.is_leaf) for x in tensors_of(model)] == held
    assert [module.training for module in model.modules()] == training
    assert list(model.state_dict()) == names
    for key, x in model.state_dict().items():
        assert torch.equal(x, state[key])
    for parameter, (gradient, value) in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or torch.equal(gradient, value)


@models
def test_frozen_never_moves_while_the_original_is_trained(name):
    model, inputs = build(name)
    frozen = rltokens.freeze(model)
    expected = frozen(inputs).clone()
    state = {key: x.clone() for key, x in frozen.state_dict().items()}
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(inputs) ** 2).sum().backward()
        optimizer.step()
    assert not all(torch.equal(p, old) for p, old in zip(model.parameters(), start, strict=True))
    for key, x in frozen.state_dict().items():
        assert torch.equal(x, state[key]), key
    assert torch.equal(frozen(inputs), expected)
    for p, old in zip(frozen.parameters(), start, strict=True):
        assert torch.equal(p, old)


def test_tied_weights_stay_tied_and_buffers_are_copied():
    model, _ = build("tied")
    frozen = rltokens.freeze(model)
    assert frozen.head.weight is frozen.embedding.weight
    assert len(list(frozen.parameters())) == len(list(model.parameters()))
    assert torch.equal(frozen.scale, model.scale)
    assert torch.equal(frozen.norm.running_mean, model.norm.running_mean)
    with torch.no_grad():
        model.scale.add_(1)
        model.steps.add_(1)
        model.norm.running_mean.add_(1)
    assert frozen.scale.item() == 2.0
    assert frozen.steps.item() == 0
    assert not torch.equal(frozen.norm.running_mean, model.norm.running_mean)


def test_a_frozen_copy_of_a_frozen_copy():
    frozen = rltokens.freeze(build("tied")[0])
    again = rltokens.freeze(frozen)
    assert not storages(frozen) & storages(again)
    torch.testing.assert_close(again.state_dict(), frozen.state_dict(), rtol=0, atol=0)


# --- Errors --------------------------------------------------------------------------------------

X, ONES, Z = torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3, 5)
PPO = {
    "logits": Z,
    "tokens": torch.zeros(2, 3, dtype=torch.int64),
    **dict.fromkeys(["logp_old", "advantages", "values", "values_old", "returns"], X),
    "mask": ONES,
}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rltokens.aggregate(X, ONES, "mean"), "mode: expected one of 'token-mean', .* got 'mean'"),
        (lambda: rltokens.aggregate(X, ONES, None), "mode: expected one of .* got None"),
        (
            lambda: rltokens.aggregate(X, ONES[:1], "token-mean"),
            r"mask: expected shape \(2, 3\), got \(1, 3\)",
        ),
        (lambda: rltokens.aggregate(X[0], ONES, "token-mean"), r"loss: expected shape \(B, T\), got \(3,\)"),
        (lambda: rltokens.aggregate(X, ONES / 2, "token-mean"), "mask: expected only 0 and 1, got 0.5"),
        (
            lambda: rltokens.aggregate(X, [[1] * 3] * 2, "token-mean"),
            "mask: expected a torch tensor, as loss is",
        ),
        (
            lambda: rltokens.clipped_policy_loss(X, X[:, :2], X, ONES),
            r"logp_old: expected shape \(2, 3\), got \(2, 2\)",
        ),
        (lambda: rltokens.clipped_policy_loss(X, X, X[:, :1], ONES), r"advantages: expected shape \(2, 3\)"),
        (
            lambda: rltokens.clipped_policy_loss(X, X, X, ONES, clip=-0.1),
            "clip: expected a number at least 0",
        ),
        (lambda: rltokens.clipped_policy_loss(X, X, X, ONES, mode="sum"), "mode: expected one of"),
        (lambda: rltokens.clipped_policy_loss(X, X, X, -ONES), "mask: expected only 0 and 1, got -1"),
        (lambda: rltokens.clipped_value_loss(X, X[:1], X, ONES), r"values_old: expected shape \(2, 3\)"),
        (
            lambda: rltokens.clipped_value_loss(X, X, X[0], ONES),
            r"returns: expected shape \(2, 3\), got \(3,\)",
        ),
        (lambda: rltokens.clipped_value_loss(X, X, X, ONES, clip=-1), "clip: expected a number at least 0"),
        (lambda: rltokens.clipped_value_loss(X, X, X, ONES, mode="sum"), "mode: expected one of"),
        (lambda: rltokens.clipped_value_loss(X, X, X, 2 * ONES), "mask: expected only 0 and 1, got 2"),
        (lambda: rltokens.entropy(torch.tensor(1.0)), r"logits: expected shape \(\.\.\., V\), got \(\)"),
        (lambda: rltokens.entropy(torch.zeros(2, 0)), r"logits: expected shape \(\.\.\., V\), got \(2, 0\)"),
        (
            lambda: rltokens.preference_loss(X, X[:1]),
            r"score_rejected: expected shape \(2, 3\), got \(1, 3\)",
        ),
        (lambda: rltokens.preference_loss(X[:, 0], X[:, :1]), r"score_rejected: expected shape \(2\)"),
        (lambda: rltokens.freeze({"weight": X}), "model: expected a torch module, got dict"),
        *(
            (lambda change=change: rltokens.ppo_loss(**{**PPO, **change}), message)
            for change, message in [
                ({"logits": Z[:1]}, r"logits: expected shape \(2, 3, V\), got \(1, 3, 5\)"),
                ({"tokens": PPO["tokens"] + 5}, "tokens: expected whole ids from 0 to 4 .* got 5"),
                ({"tokens": PPO["tokens"] - 1}, "tokens: expected whole ids from 0 to 4 .* got -1"),
                ({"logp_old": X[:1]}, r"logp_old: expected shape \(2, 3\)"),
                ({"advantages": X[:1]}, r"advantages: expected shape \(2, 3\)"),
                ({"values": X[:1]}, r"values: expected shape \(2, 3\)"),
                ({"values_old": X[:1]}, r"values_old: expected shape \(2, 3\)"),
                ({"returns": X[:1]}, r"returns: expected shape \(2, 3\)"),
                ({"mask": ONES[:1]}, r"mask: expected shape \(2, 3\)"),
                ({"mask": 2 * ONES}, "mask: expected only 0 and 1, got 2"),
                ({"clip": -0.1}, "clip: expected a number at least 0, got -0.1"),
                ({"value_clip": -0.1}, "value_clip: expected a number at least 0, got -0.1"),
                ({"mode": "batch-mean"}, "mode: expected one of .* got 'batch-mean'"),
            ]
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
