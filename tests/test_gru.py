"""The miniature's network: the fast paths against PyTorch's own GRU, and against reading everything anew."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rltokens import aggregate, clipped_policy_loss, clipped_value_loss, entropy, gru
from rltokens.gru import (
    TokenGRU,
    cell,
    draw,
    from_sorted,
    generate,
    generate_plainly,
    read,
    read_plainly,
    response_logprobs,
    response_values,
    sort_rows,
    to_sorted,
)

V, H, B, T, P = 5, 7, 9, 6, 2


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TokenGRU(V, H, V).double()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(V, (B, P), generator=generator)
    tokens = torch.randint(V, (B, T), generator=generator)
    lengths = torch.tensor([3, 6, 1, 0, 6, 2, 4, 1, 5])
    mask = (torch.arange(T) < lengths[:, None]).long()
    return prompts, tokens * mask, mask


def test_sorting_and_back_is_the_identity_on_real_tokens(batch):
    _, tokens, mask = batch
    layout = sort_rows(mask)
    assert layout.sizes == [8, 6, 5, 4, 3, 2]  # rows longer than 0, 1, 2, 3, 4, 5 tokens
    assert torch.equal(from_sorted(to_sorted(tokens + 1, layout), layout), (tokens + 1) * mask)


def test_sorted_reading_gives_the_states_of_pytorchs_gru(model, batch):
    _, tokens, mask = batch
    layout = sort_rows(mask)
    plain = read_plainly(model, tokens).transpose(0, 1)  # (B, T, H)
    got = read(model, tokens, layout)
    for unit in range(H):
        expected = plain[..., unit] * mask
        torch.testing.assert_close(from_sorted(got[:, unit], layout), expected, rtol=0, atol=1e-12)
    skipped = read(model, tokens, layout, skip=2)
    assert torch.equal(skipped, got[8 + 6 :])


def test_sorted_reading_gives_the_gradients_of_pytorchs_gru(model, batch):
    _, tokens, mask = batch
    layout = sort_rows(mask)
    weights = torch.randn(B, T, H, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    parameters = list(model.gru.parameters())
    fast = torch.stack([from_sorted(unit, layout) for unit in read(model, tokens, layout).unbind(1)], dim=-1)
    gradients = torch.autograd.grad((fast * weights).sum(), parameters)
    plain = read_plainly(model, tokens).transpose(0, 1) * mask[..., None]
    expected = torch.autograd.grad((plain * weights).sum(), parameters)
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prompt_length", [0, P])
def test_gradients_go_through_the_prompt_as_well(model, batch, prompt_length):
    prompts, tokens, mask = batch
    prompts = prompts[:, :prompt_length]
    weights = torch.randn(B, T, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * mask
    fast = response_logprobs(model, prompts, tokens, mask)[0]
    text = torch.cat([torch.full((B, 1), V), prompts, tokens[:, :-1]], dim=1)
    logits = model.head(read_plainly(model, text).transpose(0, 1)[:, prompt_length:])
    plain = torch.log_softmax(logits, dim=-1).gather(-1, tokens[..., None])[..., 0]
    parameters = list(model.parameters())
    for got, wanted in zip(
        torch.autograd.grad((fast * weights).sum(), parameters, retain_graph=True),
        torch.autograd.grad((plain * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
    # What the backward pass needs is not used up by it.
    again = torch.autograd.grad((fast * weights).sum(), parameters)
    torch.testing.assert_close(again[-1], got, rtol=0, atol=1e-12)


@pytest.mark.parametrize("gradients", [False, True])
def test_reading_keeps_what_the_backward_pass_needs_and_only_for_it(model, batch, gradients, monkeypatch):
    kept = []

    def watched(*arguments, **named):
        result = cell(*arguments, **named)
        kept.append(weakref.ref(result[0]))
        return result

    monkeypatch.setattr(gru, "cell", watched)
    with torch.set_grad_enabled(gradients):
        logp = response_logprobs(model, *batch)[0]
    alive = sum(array() is not None for array in kept)
    assert logp.requires_grad == gradients and alive == (P + T if gradients else 0)


def test_a_batch_of_empty_rows_is_read_as_nothing(model):
    mask = torch.zeros(3, 4)
    states = read(model, torch.zeros(3, 4, dtype=torch.long), sort_rows(mask))
    assert states.shape == (0, H)
    no_prompt, tokens = torch.zeros(3, 0, dtype=torch.long), torch.zeros(3, 4, dtype=torch.long)
    logp, logits, _ = response_logprobs(model, no_prompt, tokens, mask)
    assert torch.equal(logp, torch.zeros(3, 4, dtype=torch.float64)) and logits.shape == (0, V)
    assert all(
        torch.equal(g, torch.zeros_like(g)) for g in torch.autograd.grad(logp.sum(), model.parameters())
    )


def test_logprobs_are_those_of_reading_each_response_alone(model, batch):
    prompts, tokens, mask = batch
    logp, logits, _ = response_logprobs(model, prompts, tokens, mask, temperature=2.0)
    assert logits.shape == (mask.sum(), V)
    for b in range(B):
        text = torch.cat([torch.tensor([V]), prompts[b], tokens[b]])[None]
        outputs = model.head(read_plainly(model, text)[:, 0]) / 2.0  # after each token of the text
        for t in range(T):
            predicts = torch.log_softmax(outputs[P + t], dim=-1)
            expected = predicts[tokens[b, t]] if mask[b, t] else torch.tensor(0.0).double()
            torch.testing.assert_close(logp[b, t], expected, rtol=0, atol=1e-12)


def test_padding_is_not_read(model, batch):
    prompts, tokens, mask = batch
    other = torch.where(mask == 1, tokens, V - 1)
    logp = response_logprobs(model, prompts, tokens, mask)[0]
    assert torch.equal(response_logprobs(model, prompts, other, mask)[0], logp)
    longer = torch.nn.functional.pad(tokens, (0, 3)), torch.nn.functional.pad(mask, (0, 3))
    critic = TokenGRU(V, H, 1).double()
    values = response_values(critic, prompts, tokens, mask)
    assert torch.equal(response_values(critic, prompts, *longer), torch.nn.functional.pad(values, (0, 3)))


@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize("prompt_length", [0, P])
def test_generating_is_what_reading_everything_anew_gives(model, batch, eos, prompt_length):
    prompts = batch[0][:, :prompt_length].repeat(20, 1)
    fast = generate(model, prompts, 8, eos, 1.3, torch.Generator().manual_seed(3))
    plain = generate_plainly(model, prompts, 8, eos, 1.3, torch.Generator().manual_seed(3))
    assert torch.equal(fast.tokens, plain.tokens) and torch.equal(fast.mask, plain.mask)
    torch.testing.assert_close(fast.logp, plain.logp, rtol=0, atol=1e-12)
    scored, _, _ = response_logprobs(model, prompts, fast.tokens, fast.mask, temperature=1.3)
    torch.testing.assert_close(fast.logp, scored, rtol=0, atol=1e-12)


def test_a_response_ends_with_its_first_eos(model, batch):
    drawn = generate(model, batch[0].repeat(50, 1), 8, eos=0, generator=torch.Generator().manual_seed(4))
    lengths = drawn.mask.sum(dim=1)
    assert lengths.min() == 1 and lengths.max() == 8
    for tokens, mask, length in zip(drawn.tokens, drawn.mask, lengths, strict=True):
        response = tokens[:length].tolist()
        assert mask.tolist() == [True] * length + [False] * (8 - length)
        assert 0 not in response[:-1] and (response[-1] == 0 or length == 8)
        assert tokens[length:].sum() == 0


def test_finished_rows_cost_nothing(model, batch, monkeypatch):
    """After token t only rows that will have another one are computed; the last token is never read."""
    rows = []

    def watched(table, table_c, weights, tokens, state, **options):
        rows.append(len(tokens))
        return cell(table, table_c, weights, tokens, state, **options)

    monkeypatch.setattr(gru, "cell", watched)
    drawn = generate(model, batch[0].repeat(4, 1), 12, eos=0, generator=torch.Generator().manual_seed(4))
    running = drawn.mask.sum(dim=0)[1:].tolist()
    assert running[0] < 4 * B and running[-1] > 0
    assert rows == [4 * B] * (1 + P) + running
    rows.clear()
    model.head.bias.data[0] = 100.0  # all end at once
    generate(model, batch[0], 12, eos=0, generator=torch.Generator().manual_seed(4))
    assert rows == [B] * (1 + P)


def test_tokens_are_drawn_as_often_as_they_should():
    logp = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0]).log()
    u = (torch.arange(10_000) + 0.5) / 10_000
    counts = torch.bincount(draw(logp.expand(10_000, 5), u), minlength=5)
    assert (counts - 10_000 * logp.exp()).abs().max() <= 1  # the grid of u leaves no more room


def test_a_token_of_probability_zero_is_not_drawn_at_the_very_end_of_the_interval():
    logp = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]]).log()
    almost_one = torch.nextafter(torch.ones(1), torch.zeros(1))
    assert draw(logp, almost_one).item() == 3
    assert draw(logp.roll(1, dims=1), torch.zeros(1)).item() == 1


# --- on an accelerator: nothing is sorted, and nothing waits ------------------------------------------------


def test_the_paths_of_an_accelerator_give_what_the_sorted_ones_give(model, batch, monkeypatch):
    prompts, tokens, mask = batch
    critic = TokenGRU(V, H, 1).double()
    parameters = [*model.parameters(), *critic.parameters()]

    def everything():
        drawn = generate(model, prompts, 8, 0, 1.3, torch.Generator().manual_seed(3))
        logp, logits, layout = response_logprobs(model, prompts, tokens, mask, temperature=1.3)
        undecided = torch.where(mask == 1, from_sorted(entropy(logits), layout), 0)
        values = response_values(critic, prompts, tokens, mask)
        loss = (logp * values).sum() + undecided.sum()
        return [*drawn, logp, undecided, values, *torch.autograd.grad(loss, parameters)], layout

    sorted_ones, layout = everything()
    assert len(layout.places) == mask.sum()
    monkeypatch.setattr(gru, "on_cpu", lambda x: False)
    plain_ones, layout = everything()
    assert len(layout.places) == mask.numel()  # or this test has compared nothing
    for got, expected in zip(plain_ones, sorted_ones, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


class OneDevice(TorchDispatchMode):
    """Lets no operation mix arrays of two devices, as no accelerator does; single numbers may come along."""

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        arrays = [x for x in tree_leaves((arguments, named)) if isinstance(x, torch.Tensor) and x.ndim]
        assert len({x.device for x in arrays}) < 2, f"{function} mixes {[x.device for x in arrays]}"
        return function(*arguments, **(named or {}))


def test_an_iteration_on_another_device_neither_mixes_devices_nor_waits():
    # The device "meta" has shapes but no numbers: what asks for one (.item(), a mask as an index) fails.
    device = torch.device("meta")
    policy, critic = (TokenGRU(V, H, outputs).to(device) for outputs in (V, 1))
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()])
    with OneDevice():
        prompts = torch.zeros(B, P, dtype=torch.long).to(device)
        tokens, mask, logp_old = generate(policy, prompts, T, eos=0)
        i = torch.randperm(B).to(device)
        logp, logits, layout = response_logprobs(policy, prompts[i], tokens[i], mask[i])
        values = response_values(critic, prompts[i], tokens[i], mask[i])
        loss = (
            clipped_policy_loss(logp, logp_old[i], logp_old[i], mask[i])
            + clipped_value_loss(values, logp_old[i], logp_old[i], mask[i])
            + aggregate(from_sorted(entropy(logits), layout), mask[i], "token-mean")
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    assert {x.device for x in (tokens, mask, logp_old, logits, values, loss)} == {device}
