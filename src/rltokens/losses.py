"""Chapter 6: the losses of PPO with four models (torch)."""

import copy

import torch

from rltokens.validation import mask_of, numbers, one_of, real, token_ids, validated

MODES = ("token-mean", "sequence-mean", "sequence-sum")


@validated(loss=numbers("B T"), mask=mask_of("B T"), mode=one_of(*MODES))
def aggregate(loss, mask, mode):
    """One number from a loss per token: three conventions.

        token-mean      sum_bt l[b, t] / number of real tokens
        sequence-mean   mean over rows of (sum_t l[b, t] / tokens of row b)
        sequence-sum    mean over rows of sum_t l[b, t]

    In the first, each token weighs the same and so a long response more;
    in the second, each response the same and so a token of a long one
    less. In the third, each token weighs the same whatever the batch.

    Parameters
    ----------
    loss : (B, T) tensor; anything where mask is 0
    mask : (B, T) of 1 for a token of the response and 0 elsewhere; rows
        without a real token are not counted
    mode : "token-mean", "sequence-mean" or "sequence-sum"

    Returns
    -------
    scalar of the dtype of `loss`; 0 with gradient 0 where no token is real

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, an
    unknown mode.

    Source: the second is the objective of Shao et al. (2024); the first
    is Yu et al. (2025), equation 12; the third Liu et al. (2025) up to a
    constant.

    Examples
    --------
    >>> loss, mask = torch.tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    >>> [aggregate(loss, mask, mode).item() for mode in MODES]
    [3.0, 4.0, 6.0]
    """
    real_token = mask == 1
    loss = torch.where(real_token, loss, 0)
    tokens = real_token.sum(dim=1)  # (B,)
    rows = (tokens > 0).sum().clamp(min=1)
    if mode == "token-mean":
        return loss.sum() / tokens.sum().clamp(min=1)
    per_row = loss.sum(dim=1)
    if mode == "sequence-mean":
        per_row = per_row / tokens.clamp(min=1)
    return per_row.sum() / rows


@validated(
    logp=numbers("B T"),
    logp_old=numbers("B T"),
    advantages=numbers("B T"),
    mask=mask_of("B T"),
    clip=real(0),
    mode=one_of(*MODES),
)
def clipped_policy_loss(logp, logp_old, advantages, mask, clip=0.2, mode="token-mean"):
    """PPO's loss of the policy, token by token.

        rho = exp(logp - logp_old)
        l   = max(-A rho, -A clip(rho, 1 - clip, 1 + clip))

    The maximum of two losses is the pessimist's: a token whose ratio has
    already moved beyond the clip in the direction that its advantage asks
    for has gradient 0, and one that has moved the wrong way has its full
    gradient.

    Parameters
    ----------
    logp : (B, T) tensor, nats, log-probs of the drawn tokens now
    logp_old : (B, T), the same when they were drawn; not to be
        differentiated
    advantages : (B, T); nothing is whitened here
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    clip : half the width of the trusted region, at least 0
    mode : how tokens are averaged, see `aggregate`

    Returns
    -------
    scalar, to minimise

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, a
    negative clip, an unknown mode.

    Source: Schulman et al. (2017), equation 7.

    Examples
    --------
    >>> now = torch.tensor([[0.3, 0.3]]).log()
    >>> old = torch.tensor([[0.2, 0.2]]).log()
    >>> advantages, mask = torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)
    >>> loss = clipped_policy_loss(now, old, advantages, mask, mode="sequence-sum")
    >>> round(loss.item(), 4)  # -1.2, clipped, and +1.5, not clipped
    0.3
    """
    real_token = mask == 1
    log_ratio = torch.where(real_token, logp, 0) - torch.where(real_token, logp_old, 0)
    advantages = torch.where(real_token, advantages, 0)
    ratio = log_ratio.exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))
    return aggregate(loss, mask, mode)


@validated(
    values=numbers("B T"),
    values_old=numbers("B T"),
    returns=numbers("B T"),
    mask=mask_of("B T"),
    clip=real(0),
    mode=one_of(*MODES),
)
def clipped_value_loss(values, values_old, returns, mask, clip=0.2, mode="token-mean"):
    """The loss of the critic, which may not leave its old values by much.

        V' = values_old + clip(V - values_old, -clip, clip)
        l  = 1/2 max((V - R)^2, (V' - R)^2)

    Parameters
    ----------
    values : (B, T) tensor, the critic's values now
    values_old : (B, T), those of the rollout, not of the last minibatch
    returns : (B, T), what the values should be
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    clip : the most that a value may usefully move, at least 0
    mode : how tokens are averaged, see `aggregate`

    Returns
    -------
    scalar, to minimise

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, a
    negative clip, an unknown mode.

    Source: the code of Schulman et al. (2017); Engstrom et al. (2020),
    section 3.

    Examples
    --------
    >>> values, old, returns = torch.tensor([[[0.5]], [[0.0]], [[1.0]]])
    >>> loss = clipped_value_loss(values, old, returns, torch.ones(1, 1))
    >>> round(loss.item(), 4)  # 1/2 (0.2 - 1)^2, larger than 1/2 (0.5 - 1)^2
    0.32
    """
    real_token = mask == 1
    values, values_old, returns = (torch.where(real_token, x, 0) for x in (values, values_old, returns))
    near = values_old + (values - values_old).clamp(-clip, clip)
    loss = 0.5 * torch.maximum((values - returns) ** 2, (near - returns) ** 2)
    return aggregate(loss, mask, mode)


@validated(logits=numbers("... V"))
def entropy(logits):
    """How undecided each next-token distribution is.

        H = -sum_v p_v log p_v,   p = softmax(z),   0 log 0 = 0

    Parameters
    ----------
    logits : (..., V) tensor; ``-inf`` forbids a token

    Returns
    -------
    (...), nats, between 0 and log V; 0 for a row that forbids every token.
    The gradient is finite: forbidden tokens have none.

    Raises
    ------
    ValueError if `logits` has no axis, or an empty last one.

    Source: Shannon (1948).

    Examples
    --------
    >>> entropy(torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -torch.inf]]))
    tensor([1.0986, 0.6931])
    """
    nothing_left = torch.isneginf(logits).all(dim=-1, keepdim=True)
    logp = torch.log_softmax(torch.where(nothing_left, 0, logits), dim=-1)
    # 0 times -inf is NaN, and in a backward pass still is where the product is thrown away afterwards.
    forbidden = nothing_left | torch.isneginf(logp)
    return -(logp.exp() * torch.where(forbidden, 0, logp)).sum(dim=-1)


@validated(
    logits=numbers("B T V"),
    tokens=token_ids("B T", below="V"),
    logp_old=numbers("B T"),
    advantages=numbers("B T"),
    values=numbers("B T"),
    values_old=numbers("B T"),
    returns=numbers("B T"),
    mask=mask_of("B T"),
    clip=real(0),
    value_clip=real(0),
    c1=real(),
    c2=real(),
    mode=one_of(*MODES),
)
def ppo_loss(
    logits,
    tokens,
    logp_old,
    advantages,
    values,
    values_old,
    returns,
    mask,
    clip=0.2,
    value_clip=0.2,
    c1=0.5,
    c2=0.01,
    mode="token-mean",
):
    """PPO's whole loss for one minibatch of responses.

        L = policy + c1 value - c2 entropy

    Parameters
    ----------
    logits : (B, T, V) tensor, of the policy now, entry [b, t] what
        tokens[b, t] is drawn from
    tokens : (B, T) ids in 0..V-1; anything where mask is 0
    logp_old, advantages : (B, T), see `clipped_policy_loss`
    values, values_old, returns : (B, T), see `clipped_value_loss`
    mask : (B, T) of 1 for a token of the response and 0 elsewhere
    clip, value_clip : widths of the two clips, at least 0
    c1, c2 : weights of the value loss and of the entropy
    mode : how tokens are averaged, in all three alike; see `aggregate`

    Returns
    -------
    (loss, parts): the scalar to minimise, and a dict of the unweighted
    scalars `policy`, `value` and `entropy`

    Raises
    ------
    ValueError for shapes that disagree, a mask other than 0 and 1, an id
    out of range at a real token, a negative clip, an unknown mode.

    Source: Schulman et al. (2017), equation 9, with the sign turned.

    Examples
    --------
    >>> zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    >>> loss, parts = ppo_loss(
    ...     logits=torch.zeros(1, 2, 2), tokens=torch.tensor([[0, 1]]),
    ...     logp_old=torch.full((1, 2), 0.5).log(), advantages=ones,
    ...     values=zeros, values_old=zeros, returns=ones, mask=ones, c2=0.1,
    ... )
    >>> {name: round(part.item(), 4) for name, part in parts.items()}
    {'policy': -1.0, 'value': 0.5, 'entropy': 0.6931}
    >>> round(loss.item(), 4)  # -1 + 0.5 * 0.5 - 0.1 * 0.6931
    -0.8193
    """
    real_token = mask == 1
    z = torch.where(real_token[..., None], logits, 0)
    ids = torch.where(real_token, tokens, 0).long()
    logp = torch.log_softmax(z, dim=-1).gather(-1, ids[..., None])[..., 0]
    parts = {
        "policy": clipped_policy_loss(logp, logp_old, advantages, mask, clip, mode),
        "value": clipped_value_loss(values, values_old, returns, mask, value_clip, mode),
        "entropy": aggregate(entropy(z), mask, mode),
    }
    return parts["policy"] + c1 * parts["value"] - c2 * parts["entropy"], parts


@validated(score_chosen=numbers("..."), score_rejected=numbers("..."))
def preference_loss(score_chosen, score_rejected):
    """How surprised a reward model is by the preferences of people.

        p(chosen over rejected) = sigmoid(s_chosen - s_rejected)
        loss = mean of -log p

    Only differences count, so the model's scores have no zero of their own.

    Parameters
    ----------
    score_chosen, score_rejected : (...) tensors of one shape, a pair at
        each place

    Returns
    -------
    scalar, nats; 0 with gradient 0 where there is no pair

    Raises
    ------
    ValueError for shapes that disagree.

    Source: Bradley and Terry (1952); Christiano et al. (2017), equation 1.

    Examples
    --------
    >>> preference_loss(torch.tensor([1.0]), torch.tensor([1.0]))
    tensor(0.6931)
    >>> preference_loss(torch.tensor([0.0]), torch.tensor([1e4]))
    tensor(10000.)
    """
    loss = -torch.nn.functional.logsigmoid(score_chosen - score_rejected)
    return loss.sum() / max(loss.numel(), 1)


def freeze(model):
    """A copy of a model that never changes: the reference.

    Parameters
    ----------
    model : any torch module, left as it was

    Returns
    -------
    A deep copy in eval mode that needs no gradients and shares no storage
    with `model`. Buffers are copied; weights tied there are tied here.

    Raises
    ------
    ValueError for what is no module.

    Examples
    --------
    >>> policy = torch.nn.Linear(2, 2)
    >>> reference = freeze(policy)
    >>> with torch.no_grad():
    ...     before = reference.bias.clone()
    ...     _ = policy.bias.add_(1.0)
    >>> torch.equal(reference.bias, before), reference.bias.requires_grad
    (True, False)
    """
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model: expected a torch module, got {type(model).__name__}")
    # deepcopy refuses results of a computation, which some layers keep (weight norm its weight, others the
    # last hidden state): whatever needs gradients and is no parameter goes into the memo as a plain copy.
    memo, seen, left = {}, set(), [vars(module) for module in model.modules()]
    while left:
        kept = left.pop()
        if isinstance(kept, torch.Tensor):
            if kept.requires_grad and not isinstance(kept, torch.nn.Parameter):
                memo[id(kept)] = kept.detach().clone()
        elif isinstance(kept, dict | list | tuple) and id(kept) not in seen:
            seen.add(id(kept))
            left.extend(kept.values() if isinstance(kept, dict) else kept)
    frozen = copy.deepcopy(model, memo)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return frozen.eval()
