"""On a GPU as on a CPU: what is drawn, what is computed and what is learned, to the precision of float32.

Tolerances: log-probs, values and their gradients 1e-4, which is a hundred times what the two kinds of
arithmetic differ by; histories of a few iterations 1e-2.
"""

import io
import math

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("no CUDA device is here", allow_module_level=True)

from rltokens import ppo  # noqa: E402
from rltokens.gru import TokenGRU, generate, generate_plainly, response_logprobs, response_values  # noqa: E402

V, H, B, T, P = 11, 32, 64, 12, 3
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture
def pairs():
    """The same policy, critic and prompts on both devices."""
    torch.manual_seed(0)
    policy, critic = TokenGRU(V, H, V), TokenGRU(V, H, 1)
    prompts = torch.randint(V, (B, P))

    def on(device):
        copies = [TokenGRU(V, H, outputs).to(device) for outputs in (V, 1)]
        for copy, model in zip(copies, (policy, critic), strict=True):
            copy.load_state_dict(model.state_dict())
        return *copies, prompts.to(device)

    return on("cpu"), on("cuda")


@pytest.mark.parametrize("eos", [None, 0])
def test_the_same_seed_draws_the_same_on_both(pairs, eos):
    (policy, _, prompts), (policy_there, _, prompts_there) = pairs
    here = generate(policy, prompts, T, eos, 1.3, torch.Generator().manual_seed(1))
    for write in (generate, generate_plainly):
        there = write(policy_there, prompts_there, T, eos, 1.3, torch.Generator().manual_seed(1))
        assert {x.device.type for x in there} == {"cuda"}
        # A uniform number may lie so near to the edge between two tokens that rounding decides.
        same = (there.tokens.cpu() == here.tokens).all(dim=1)
        assert same.float().mean() >= 1 - 2 / B
        torch.testing.assert_close(there.mask.cpu()[same], here.mask[same])
        torch.testing.assert_close(there.logp.cpu()[same], here.logp[same], **CLOSE)


def test_log_probs_values_and_gradients_agree(pairs):
    (policy, _, prompts), _ = pairs
    tokens, mask, _ = generate(policy, prompts, T, 0, generator=torch.Generator().manual_seed(2))
    assert 0 < mask.float().mean() < 1  # there is padding

    def everything(policy, critic, prompts):
        device = prompts.device
        logp = response_logprobs(policy, prompts, tokens.to(device), mask.to(device), 1.3)[0]
        values = response_values(critic, prompts, tokens.to(device), mask.to(device))
        loss = ((logp - values) ** 2).sum() / B
        gradients = torch.autograd.grad(loss, [*policy.parameters(), *critic.parameters()])
        return logp, values, *gradients

    for here, there in zip(*(everything(*models) for models in pairs), strict=True):
        assert there.device.type == "cuda" and here.abs().max() > 1e-2
        torch.testing.assert_close(there.cpu(), here, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"advantage": "leave-one-out"}, {"task": "moods", "batch": 64}])
def test_training_goes_the_same_way(options):
    # Without an early stop or a reward model all that is drawn is drawn on the CPU.
    settings = {"task": "toy", "iterations": 3, "hidden": 32, **options}
    here, there = (ppo.train(**settings, device=device)[1] for device in ("cpu", "cuda"))
    assert len(there) == 3
    for a, b in zip(here, there, strict=True):
        for name in ("reward", "kl_reference", "kl_old", "entropy", "fluency", "length"):
            assert math.isclose(a[name], b[name], rel_tol=1e-2, abs_tol=1e-2), name
    if "task" not in options:
        assert math.isclose(here[-1]["kl_optimum"], there[-1]["kl_optimum"], abs_tol=1e-2)


@pytest.mark.parametrize("options", [{"critic": "head"}, {"reward": "model", "pairs": 64}, {"stop_kl": 1e-3}])
def test_every_kind_of_run_runs(options):
    _, history = ppo.train("moods", device="cuda", iterations=2, hidden=16, batch=32, **options)
    assert len(history) == 2


def test_a_checkpoint_of_the_gpu_goes_on_on_the_cpu_and_back():
    settings = {"task": "toy", "hidden": 16}
    state, _ = ppo.train(**settings, iterations=2, device="cuda")
    kept = {}
    for start, device in ((2, "cpu"), (3, "cuda")):
        file = io.BytesIO()
        torch.save(state.saved(), file)
        file.seek(0)
        kept[device] = torch.load(file, map_location="cpu", weights_only=True)
        assert kept[device]["iteration"] == start
        state, history = ppo.train(**settings, iterations=start + 1, device=device, checkpoint=kept[device])
        assert [line["iteration"] for line in history] == [start]
        assert state.policy.head.weight.device.type == device
    before, after = (kept[device]["policy"]["head.weight"] for device in ("cpu", "cuda"))
    assert not torch.equal(before, after)  # it learned in between


def test_an_update_does_not_wait_for_the_gpu(pairs):
    _, (policy, critic, prompts) = pairs
    optimizer = torch.optim.Adam(policy.parameters(), fused=True)
    tokens, mask, logp_old = generate(policy, prompts, T, 0)
    order = torch.randperm(B, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # an operation that waits raises
    try:
        for i in order.tensor_split(2):
            logp, _, _ = response_logprobs(policy, prompts[i], tokens[i], mask[i])
            values = response_values(critic, prompts[i], tokens[i], mask[i])
            optimizer.zero_grad()
            ((logp - logp_old[i]).exp() * values.detach()).sum().backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
