"""PPO's iteration as one would write it first: what `ppo.py` measures the trainer against.

The same mathematics, the same random numbers and so the same new weights as an iteration of
`rltokens.ppo.train` with its defaults (a test compares them). But the prefix is read anew for every token
written, the policy, the reference and the critic score in passes of their own, and every pass is PyTorch's
GRU over the padded batch.
"""

import numpy as np
import torch

import rltokens
from rltokens.gru import begin, generate_plainly, read_plainly


def outputs(model, prompts, tokens):
    """What the model's head gives before each token of the responses, padding included: (B, T, outputs)."""
    inputs = torch.cat([begin(model, prompts), tokens[:, :-1]], dim=1)
    return model.head(read_plainly(model, inputs)).transpose(0, 1)[:, prompts.shape[1] :]


def iteration(
    task, policy, reference, critic, seed, batch, epochs, minibatches, rate, beta, entropy_weight, lap
):
    """Write, score and climb once, on the CPU; `lap(phase)` is called after each phase.

    Returns the number of tokens written.
    """
    trained = [list(model.parameters()) for model in (policy, critic)]
    optimizer = torch.optim.Adam([p for part in trained for p in part], lr=rate, eps=1e-5, fused=True)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(task.prompts), (batch,), generator=generator)
    prompts = torch.as_tensor(task.prompts)[drawn]
    lap("before")

    tokens, mask, _ = generate_plainly(policy, prompts, task.max_length, task.eos, generator=generator)
    mask = mask.long()
    lap("rollout")

    with torch.no_grad():
        logp_old, logp_ref = (
            torch.log_softmax(outputs(model, prompts, tokens), dim=-1).gather(-1, tokens[..., None])[..., 0]
            for model in (policy, reference)
        )
        values_old = outputs(critic, prompts, tokens)[..., 0]
    real = mask.numpy()
    score = task.gold(prompts.numpy(), tokens.numpy(), real)
    log_probs = [x.double().numpy() for x in (logp_old, logp_ref)]
    rewards = rltokens.kl_penalized_rewards(*log_probs, score, real, beta)
    advantages, returns = rltokens.gae(rewards, values_old.double().numpy(), real, gamma=1.0, lam=0.95)
    advantages = rltokens.masked_whiten(advantages, real)
    advantages, returns = (torch.as_tensor(x.astype(np.float32)) for x in (advantages, returns))
    lap("score")

    for _ in range(epochs):
        for i in torch.randperm(batch, generator=generator).tensor_split(minibatches):
            loss, _ = rltokens.ppo_loss(
                outputs(policy, prompts[i], tokens[i]), tokens[i], logp_old[i], advantages[i],
                outputs(critic, prompts[i], tokens[i])[..., 0], values_old[i], returns[i], mask[i],
                c2=entropy_weight,
            )  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            for part in trained:
                torch.nn.utils.clip_grad_norm_(part, 1.0)
            optimizer.step()
    lap("update")
    return int(real.sum())
