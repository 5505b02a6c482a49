"""PPO with four models on a small language model: the whole loop, from top to bottom.

    python -m rltokens.ppo                      # sentences that follow an instruction
    python -m rltokens.ppo --task toy           # the best policy is known: watch the distance to it
    python -m rltokens.ppo --task overoptimize  # a learned reward model, and what becomes of it
    python -m rltokens.ppo --help

The four models: the *policy* writes; the *reference*, a frozen copy of it from before training, says what
fluent text is; the *reward model* scores whole responses (or a verifier does); the *critic* says before each
token what is still to come. One iteration: write responses, score them, hand the score to the tokens, and
climb for a few epochs.

Where this departs from the textbook, and the option that turns it off:

- the KL penalty is part of the reward, token by token (Ouyang et al. 2022); --beta 0
- advantages are whitened over the batch (Ziegler et al. 2019); --no-whiten
- the value loss is clipped as the policy's is (Engstrom et al. 2020); --value-clip 1e9
- learning rates fall to 0 in a straight line, or PPO hovers above its optimum; --constant-rate
- a response cut off at the cap is scored like any other, and nothing comes after it; --at-cap bootstrap
"""

import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from rltokens.gru import TokenGRU, from_sorted, generate, response_logprobs, response_values
from rltokens.tasks import TASKS, Task, every_response, learn_preferences, reward_scores
from rltokens.validation import above, one_of, real, validated, whole


@dataclass
class State:
    """All that changes while training, and the frozen models: what a checkpoint holds."""

    task: Task
    policy: TokenGRU
    reference: TokenGRU
    reward_model: TokenGRU | None
    critic: TokenGRU | None
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    iteration: int
    beta: float

    MODELS = ("policy", "reference", "reward_model", "critic")

    def saved(self):
        """As a dict of tensors and numbers, which `torch.save` takes."""
        models = {name: getattr(self, name) for name in self.MODELS}
        return {
            **{name: model.state_dict() for name, model in models.items() if model is not None},
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "iteration": self.iteration,
            "beta": self.beta,
        }

    def load(self, saved):
        """Go on from what `saved` gave, bit for bit."""
        try:
            for name in self.MODELS:
                if getattr(self, name) is not None:
                    getattr(self, name).load_state_dict(saved[name])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.generator.set_state(saved["generator"])
            self.iteration, self.beta = saved["iteration"], saved["beta"]
        except Exception as error:  # what does not fit can fail anywhere inside of torch
            kind = type(error).__name__
            raise ValueError(f"checkpoint: expected one of a run with these options ({kind})") from error


def _device_is_there(given):
    try:
        torch.zeros(1, device=given["device"]).item()
    except Exception as error:  # each backend fails in its own way
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ValueError(f"device: expected one that is there ({there}), got {given['device']!r}") from error


def _fits_together(given):
    no_critic = given["advantage"] != "gae"
    for option, needs_critic in (
        ("gamma", given["gamma"] != 1),
        ("at_cap", given["at_cap"] == "bootstrap"),
        ("critic", given["critic"] != "own"),
    ):
        if no_critic and needs_critic:
            raise ValueError(f"{option}: {given[option]!r} needs a critic, which only advantage 'gae' has")
    if TASKS[given["task"]].eos is None and (given["missing_eos_penalty"] or given["at_cap"] == "bootstrap"):
        raise ValueError(f"task: {given['task']!r} has no EOS, so no response lacks one or is cut off")
    settings = TASKS[given["task"]].settings
    batch, minibatches = (settings[x] if given[x] is None else given[x] for x in ("batch", "minibatches"))
    group = given["group"] if no_critic else 1
    if batch % group or batch < minibatches:
        raise ValueError(
            f"batch: expected a multiple of group = {group}, and at least minibatches = {minibatches}, "
            f"got {batch}"
        )
    if given["missing_eos_penalty"] and given["at_cap"] == "bootstrap":
        raise ValueError(
            "missing_eos_penalty: it is part of the score, which at_cap 'bootstrap' does not pay"
        )
    _device_is_there(given)


@validated(
    _fits_together,
    task=one_of(*TASKS),
    seed=whole(0, 2**63 - 1),  # what torch takes
    iterations=whole(1),
    batch=whole(1),
    advantage=one_of("gae", "leave-one-out", "group"),
    group=whole(2),
    beta=real(0),
    target_kl=above(0),
    horizon=above(0),
    reward=one_of("verifier", "model"),
    pairs=whole(2),
    noise=real(0),
    hidden=whole(1),
    critic=one_of("own", "head"),
    gamma=real(0, 1),
    lam=real(0, 1),
    clip=real(0),
    value_clip=real(0),
    value_weight=real(0),
    entropy_weight=real(),
    epochs=whole(1),
    minibatches=whole(1),
    rate=above(0),
    max_gradient=above(0),
    stop_kl=above(0),
    temperature=above(0),
    missing_eos_penalty=real(0),
    at_cap=one_of("score", "bootstrap"),
    mode=one_of("token-mean", "sequence-mean", "sequence-sum"),
)
def train(
    task="moods",
    seed=0,
    device="cpu",
    iterations=None,
    batch=None,
    advantage="gae",
    group=8,
    beta=None,
    target_kl=None,
    horizon=10_000,
    reward=None,
    pairs=None,
    noise=1.0,
    hidden=64,
    critic="own",
    gamma=1.0,
    lam=0.95,
    whiten=True,
    clip=0.2,
    value_clip=0.2,
    value_weight=0.5,
    entropy_weight=None,
    epochs=4,
    minibatches=None,
    rate=None,
    constant_rate=False,
    max_gradient=1.0,
    stop_kl=None,
    temperature=1.0,
    missing_eos_penalty=0.0,
    at_cap="score",
    mode="token-mean",
    *,
    progress=None,
    on_iteration=None,
    checkpoint=None,
    **functions,
):
    """Train a small language model on a task by PPO.

    Parameters
    ----------
    task : moods, toy or overoptimize
    seed : of everything that is drawn; the same seed gives the same run on a CPU
    device : cpu, cuda or another that torch knows
    iterations : rounds of writing and learning; by default the task's own number
    batch : responses in an iteration; by default the task's own number
    advantage : gae (with a critic), leave-one-out (RLOO) or group (GRPO), the last two without a critic
    group : responses to one prompt, for leave-one-out and group
    beta : price of a nat of distance from the reference; by default the task's own
    target_kl : let beta adapt so that the KL to the reference settles here, in nats per response
    horizon : of the controller of beta, in responses
    reward : verifier, or model for a reward model learned from preferences; by default the task's own
    pairs : preference pairs that the reward model learns from; by default the task's own number
    noise : of the preferences; at 0 the better response always wins
    hidden : size of the state of each network
    critic : own (a network of its own) or head (a second head on the policy's)
    gamma : discount
    lam : lambda of GAE
    whiten : shift and scale GAE's advantages to mean 0 and variance 1 over the batch
    clip : of the policy's ratio
    value_clip : of the critic's change
    value_weight : of the value loss in the whole loss
    entropy_weight : of the entropy in the whole loss; by default the task's own
    epochs : passes over the batch in an iteration
    minibatches : steps in an epoch; by default the task's own number
    rate : learning rate of Adam, falling to 0 over the run; by default the task's own
    constant_rate : keep the learning rate where it is
    max_gradient : the norm to which gradients are cut, policy and critic each
    stop_kl : end an iteration's epochs when the KL to the policy that wrote has passed this, per token
    temperature : divides the logits, when writing and when scoring
    missing_eos_penalty : taken off the score of a response without EOS, in tasks that have one
    at_cap : score a response cut off at the cap, or bootstrap: no score, the critic says what would come
    mode : how losses are averaged: token-mean, sequence-mean or sequence-sum
    progress : a function (range, label) that wraps the long loops, for a progress bar
    on_iteration : called with (state, metrics) after each iteration; a true answer ends the run
    checkpoint : what `State.saved` gave, to go on from there
    functions : the course's functions that the trainer calls, by name, to take the place of the package's
        own: `gae`, `clipped_policy_loss` and the others in `COURSE_FUNCTIONS`

    Returns
    -------
    (state, history): the final `State`, and a list of the metrics of all iterations

    Raises
    ------
    ValueError for an option that is not one of those above or does not fit the others;
    FloatingPointError where a number stops being finite, before it is saved.

    Source: Schulman et al. (2017); Ouyang et al. (2022).

    Examples
    --------
    >>> state, history = train("toy", iterations=2, hidden=8)
    >>> abs(history[0]["kl_reference"]) < 1e-6  # nothing has been learned when the first batch is written
    True
    """
    use = course_functions(functions)
    task = TASKS[task]
    iterations, batch, minibatches, rate, beta, entropy_weight, reward, pairs = (
        task.settings[name] if asked is None else asked
        for name, asked in (
            ("iterations", iterations), ("batch", batch), ("minibatches", minibatches), ("rate", rate),
            ("beta", beta), ("entropy_weight", entropy_weight), ("reward", reward), ("pairs", pairs),
        )
    )  # fmt: skip
    group = 1 if advantage == "gae" else group
    progress = progress or (lambda steps, label: steps)

    # The four models, or as many as are needed.
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers are left alone
        torch.manual_seed(seed)
        if checkpoint is None:
            policy = task.imitate(hidden, seed, progress)
        else:
            policy = TokenGRU(len(task.words), hidden, len(task.words))
        reference = use.freeze(policy)
        reward_model = value_model = None
        if reward == "model":
            reward_model = TokenGRU(len(task.words), hidden, outputs=1)
            if checkpoint is None:
                learn_preferences(
                    reward_model, task, reference, pairs, noise, seed, progress, use.preference_loss
                )
            reward_model = use.freeze(reward_model)
        if advantage == "gae":
            value_model = TokenGRU(len(task.words), hidden, outputs=1)
            if critic == "head":
                value_model.gru = policy.gru
    for model in filter(None, (policy, reference, reward_model, value_model)):
        model.to(device)
    trained = [list(policy.parameters())]
    if value_model is not None:
        trained.append(list((value_model if critic == "own" else value_model.head).parameters()))
    optimizer = torch.optim.Adam([p for part in trained for p in part], lr=rate, eps=1e-5, fused=True)
    generator = torch.Generator().manual_seed(seed)
    state = State(task, policy, reference, reward_model, value_model, optimizer, generator, 0, beta)
    if checkpoint is not None:
        state.load(checkpoint)

    prompts_of_task = torch.as_tensor(task.prompts)
    history = []
    for _ in progress(range(state.iteration, iterations), "training"):
        decay = 1.0 if constant_rate else 1.0 - state.iteration / iterations
        optimizer.param_groups[0]["lr"] = rate * decay
        # On the toy the optimum is known, and so is the distance to it.
        exact = {"kl_optimum": kl_to_optimum(state, temperature, use)} if task.exact else {}
        clock = Clock(device)

        # --- write
        drawn = torch.randint(len(prompts_of_task), (batch // group,), generator=generator)
        prompts = prompts_of_task[drawn].repeat_interleave(group, dim=0).to(device)
        tokens, mask, logp_old = generate(
            policy, prompts, task.max_length, task.eos, temperature, generator=generator
        )
        clock.lap("rollout")

        # --- score
        with torch.no_grad():
            logp_ref = response_logprobs(reference, prompts, tokens, mask, temperature)[0]
            if value_model is not None:
                # One column more, for the state after the last token.
                after_t = torch.nn.functional.pad(mask, (1, 0), value=1)
                values = response_values(
                    value_model, prompts, torch.nn.functional.pad(tokens, (0, 1)), after_t
                )
            if reward_model is not None:
                score = reward_scores(reward_model, prompts, tokens, mask)
        text = [x.cpu().numpy() for x in (prompts, tokens, mask)]
        gold = task.gold(*text)
        score = gold if reward_model is None else score.cpu().double().numpy()
        real = text[2]
        lengths = real.sum(axis=1)
        is_cut = np.zeros(batch, dtype=bool)
        if task.eos is not None:
            is_cut = ~((text[1] == task.eos) & (real == 1)).any(axis=1)
        score = score - missing_eos_penalty * is_cut
        clock.lap("score")

        # --- hand the score to the tokens
        on_host = [x.cpu().double().numpy() for x in (logp_old, logp_ref)]
        if at_cap == "bootstrap":
            score = np.where(is_cut, 0.0, score)
        rewards = use.kl_penalized_rewards(*on_host, score, real, state.beta)
        metrics = {}
        if advantage == "gae":
            values_through = values.cpu().double().numpy()  # (B, T+1)
            # A response that is scored is over, cut off or not: nothing comes after it.
            goes_on = is_cut if at_cap == "bootstrap" else np.zeros_like(is_cut)
            after_last = np.where(goes_on, values_through[np.arange(batch), lengths], 0.0)
            advantages, returns = use.gae(rewards, values_through[:, :-1], real, gamma, lam, after_last)
            metrics["explained_variance"] = explained_variance(advantages, returns, real)
            if whiten:
                advantages = use.masked_whiten(advantages, real)
            values, returns = values[:, :-1], torch.as_tensor(returns, dtype=values.dtype).to(device)
        else:
            totals = rewards.sum(axis=1).reshape(-1, group)
            compare = {
                "leave-one-out": use.leave_one_out_advantages,
                "group": use.group_normalized_advantages,
            }
            advantages = compare[advantage](totals).reshape(-1, 1) * real
        advantages = torch.as_tensor(advantages, dtype=logp_old.dtype).to(device)
        clock.lap("score")

        # --- climb
        diagnostics = []
        # All on the device at once: for a copy in between, the host would have to wait.
        orders = torch.stack([torch.randperm(batch, generator=generator) for _ in range(epochs)]).to(device)
        for order in orders:
            for i in order.tensor_split(minibatches):
                logp, logits, layout = response_logprobs(policy, prompts[i], tokens[i], mask[i], temperature)
                policy_loss = use.clipped_policy_loss(logp, logp_old[i], advantages[i], mask[i], clip, mode)
                entropy = use.aggregate(from_sorted(use.entropy(logits), layout), mask[i], mode)
                loss = policy_loss - entropy_weight * entropy
                value_loss = torch.zeros_like(loss)
                if value_model is not None:
                    now = response_values(value_model, prompts[i], tokens[i], mask[i])
                    value_loss = use.clipped_value_loss(now, values[i], returns[i], mask[i], value_clip, mode)
                    loss = loss + value_weight * value_loss
                optimizer.zero_grad()
                loss.backward()
                norms = [torch.nn.utils.clip_grad_norm_(part, max_gradient) for part in trained]
                optimizer.step()
                with torch.no_grad():
                    moved = torch.where(mask[i] == 1, logp - logp_old[i], 0)
                    kl_old = (moved.expm1() - moved).sum() / mask[i].sum()  # k3, never negative
                    clipped = ((moved.exp() - 1).abs() > clip).sum() / mask[i].sum()
                    numbers = (policy_loss, value_loss, entropy, kl_old, clipped, moved.abs().max(), *norms)
                    # Kept on the device: to look at them now, the host would have to wait.
                    diagnostics.append(torch.stack([x.detach() for x in numbers]))
            if stop_kl is not None and torch.stack(diagnostics[-minibatches:])[:, 3].mean() > stop_kl:
                break
        diagnostics = torch.stack(diagnostics).cpu().double().numpy()  # (steps, numbers)
        all_weights = sum(p.detach().double().sum() for part in trained for p in part).item()
        clock.lap("update")

        log_ratio = np.where(real == 1, on_host[0] - on_host[1], 0.0)
        metrics = {
            "iteration": state.iteration,
            "reward": score.mean(),
            "gold": gold.mean(),
            "kl_reference": log_ratio.sum(axis=1).mean(),
            "kl_old": diagnostics[-minibatches:, 3].mean(),
            **exact,
            "entropy": diagnostics[0, 2],
            "fluency": on_host[1].sum() / lengths.sum(),
            "length": lengths.mean(),
            "cut_off": is_cut.mean(),
            "clip_fraction": diagnostics[:, 4].mean(),
            **metrics,
            "policy_loss": diagnostics[:, 0].mean(),
            "value_loss": diagnostics[:, 1].mean(),
            "gradient_norm": diagnostics[:, 6].mean(),
            "beta": state.beta,
            "rate": rate * decay,
        }
        metrics = {name: float(value) for name, value in metrics.items()} | {"iteration": state.iteration}
        look_for_trouble(
            metrics | {"losses or gradients": diagnostics.sum(), "weights": all_weights},
            first_move=diagnostics[0, 5],
            log_ratio=log_ratio,
        )
        metrics["tokens_per_second"] = clock.rates(int(lengths.sum()))

        if target_kl is not None:
            state.beta = use.adapt_beta(state.beta, metrics["kl_reference"], target_kl, batch, horizon)
        state.iteration += 1
        history.append(metrics)
        if on_iteration is not None and on_iteration(state, metrics):
            break
    return state, history


COURSE_FUNCTIONS = (
    "kl_penalized_rewards", "gae", "masked_whiten", "leave_one_out_advantages", "group_normalized_advantages",
    "adapt_beta", "optimal_policy", "clipped_policy_loss", "clipped_value_loss", "entropy", "aggregate",
    "preference_loss", "freeze",
)  # fmt: skip


def course_functions(given):
    """The functions of the course that the trainer calls: those given, else the package's own.

    >>> course_functions({"gae": max}).gae(1, 2)
    2
    """
    unknown = sorted(set(given) - set(COURSE_FUNCTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]}: expected an option of train or one of {', '.join(COURSE_FUNCTIONS)}")
    if len(given) < len(COURSE_FUNCTIONS):
        import rltokens  # here, so that this file also works where a notebook brings all of them

        given = {name: getattr(rltokens, name) for name in COURSE_FUNCTIONS} | given
    return SimpleNamespace(**given)


@torch.no_grad()
def kl_to_optimum(state, temperature, use):
    """KL(pi || pi*), exactly: both are known for all responses of a small task.

    >>> state, _ = train("toy", iterations=1, hidden=8, rate=1e-9)
    >>> round(kl_to_optimum(state, 1.0, course_functions({})), 1)  # of the reference, by and large
    0.3
    """
    task, device = state.task, state.policy.head.weight.device
    responses = every_response(len(task.words), task.max_length).to(device)
    prompts, mask = responses[:, :0], torch.ones_like(responses)
    logp, logp_ref = (
        response_logprobs(model, prompts, responses, mask, temperature)[0].sum(dim=1).cpu().double().numpy()
        for model in (state.policy, state.reference)
    )
    if state.reward_model is None:
        rewards = task.gold(*(x.cpu().numpy() for x in (prompts, responses, mask)))
    else:
        rewards = reward_scores(state.reward_model, prompts, responses, mask).cpu().double().numpy()
    if state.beta == 0:
        return np.inf if np.ptp(rewards) else 0.0
    logp_star, _ = use.optimal_policy(logp_ref, rewards, state.beta)
    return float((np.exp(logp) * (logp - logp_star)).sum())


def explained_variance(advantages, returns, mask):
    """The share of the returns' variance that the critic's values account for; at best 1.

    >>> returns, values = np.array([[0.0, 2.0]]), np.array([[0.5, 1.5]])
    >>> float(explained_variance(returns - values, returns, np.ones((1, 2))))
    0.75
    """
    left, all_of_it = np.var(advantages[mask == 1]), np.var(returns[mask == 1])
    return 1 - left / all_of_it if all_of_it > 0 else 0.0


def look_for_trouble(metrics, first_move, log_ratio):
    """What must hold in every iteration; cheap, since all numbers are at hand.

    >>> look_for_trouble({"iteration": 7, "reward": 1.0}, first_move=1e-7, log_ratio=np.zeros(1))
    >>> look_for_trouble({"iteration": 7, "gold": np.nan}, first_move=1e-7, log_ratio=np.zeros(1))
    Traceback (most recent call last):
    FloatingPointError: iteration 7: no longer finite: gold. What was saved before is sound; try a lower rate
    """
    wrong = [
        name
        for name, value in metrics.items()
        # Without a penalty the optimum is infinitely far away, and that is no trouble.
        if not (np.isfinite(value) or (name == "kl_optimum" and value == np.inf))
    ]
    at = f"iteration {metrics['iteration']}"
    if wrong:
        raise FloatingPointError(
            f"{at}: no longer finite: {', '.join(wrong)}. What was saved before is sound; try a lower rate"
        )
    if first_move > 1e-3:
        raise AssertionError(
            f"{at}: before the first step the policy is the one that wrote, and every ratio should be 1; a "
            f"log-ratio is {first_move:.2g}: log-probs are not those of the distribution sampled from"
        )
    if metrics["iteration"] == 0 and np.abs(log_ratio).max() > 1e-3:
        raise AssertionError(
            f"{at}: before training the policy is the reference, and every log-ratio should be 0; one is "
            f"{np.abs(log_ratio).max():.2g}"
        )


class Clock:
    """Seconds by phase; on an accelerator each lap waits for what was begun in it."""

    def __init__(self, device):
        self.wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
        self.seconds = {}
        self.last = self.began = time.perf_counter()

    def lap(self, phase):
        self.wait()
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now

    def rates(self, tokens):
        """Tokens of the responses per second, in each phase and in all."""
        seconds = self.seconds | {"all": self.last - self.began}
        return {phase: tokens / max(took, 1e-9) for phase, took in seconds.items()}


if __name__ == "__main__":
    from rltokens.runs import main

    main()
