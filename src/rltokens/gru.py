"""A small recurrent language model, and reading whole batches of responses with it, fast.

The network reads one token at a time and keeps a hidden state, so that generating a token costs the same
however long the prefix is. A batch is read *sorted*: rows from long to short, position by position, so that
the rows still running are always the first ones and no time goes into padding.
"""

from typing import NamedTuple

import torch
from torch import nn


class TokenGRU(nn.Module):
    """A GRU over tokens with a linear head: logits, a value or a score after each token.

    Its input is one-hot, so that the input weights are a table with a row for each token, and id
    `vocab_size` stands for the beginning of the text.

    Parameters
    ----------
    vocab_size : V
    hidden : H, the size of the state
    outputs : numbers that the head gives: V for a language model, 1 for a critic or a reward model

    Source: Cho et al. (2014), with PyTorch's place for the reset gate.

    Examples
    --------
    >>> model = TokenGRU(vocab_size=4, hidden=8, outputs=4)
    >>> layout = sort_rows(torch.ones(2, 3))
    >>> states = read(model, torch.zeros(2, 3, dtype=torch.long), layout)
    >>> states.shape, model.head(states).shape
    (torch.Size([6, 8]), torch.Size([6, 4]))
    """

    def __init__(self, vocab_size, hidden, outputs):
        super().__init__()
        self.vocab_size = vocab_size
        self.gru = nn.GRU(vocab_size + 1, hidden)
        self.head = nn.Linear(hidden, outputs)

    def gates(self):
        """What `cell` needs: two tables with a row for each token and the state's weights.

        The first table, (V+1, 3H), is what r, z and m are without the state, so m's part is the same for
        every token; the second, (V+1, H), what the token adds to c. The weights are (H, 3H).
        """
        gru, hidden = self.gru, self.gru.hidden_size
        r_and_z, c = (gru.weight_ih_l0.t() + gru.bias_ih_l0).split([2 * hidden, hidden], dim=1)
        of_r_and_z, of_m = gru.bias_hh_l0.split([2 * hidden, hidden])
        table = torch.cat([r_and_z + of_r_and_z, of_m.expand_as(c)], dim=1)
        return table, c.contiguous(), gru.weight_hh_l0.t().contiguous()


def cell(table, table_c, weights, tokens, state, out=None):
    """One step of the GRU: tokens (n,) and states h_{t-1} (n, H) to (r, z, m, c, h_t), (n, H) each.

    r   = sigmoid(table_r[y] + h_{t-1} W_r)      z alike
    m   = table_m[y] + h_{t-1} W_m
    c   = tanh(table_c[y] + r m)
    h_t = c + z (h_{t-1} - c)

    Before the first token the state is 0, and None stands for it: then nothing is multiplied. What is
    given as `out` becomes h_t.
    """
    gates = table.index_select(0, tokens)
    if state is not None:
        gates.addmm_(state, weights)
    r, z, m = by_gate(gates)
    r.sigmoid_()
    z.sigmoid_()
    c = table_c.index_select(0, tokens).addcmul_(r, m).tanh_()
    if state is None:
        return r, z, m, c, torch.addcmul(c, c, z, value=-1, out=out)
    return r, z, m, c, torch.lerp(c, state, z, out=out)


def by_gate(x):
    """The parts of r, z and m, (n, H) each, of an array (n, 3H); views of it."""
    return x.view(len(x), 3, x.shape[1] // 3).unbind(1)


def on_cpu(x):
    """Whether the host may look at the numbers of x: on an accelerator it would have to wait for them."""
    return x.device.type == "cpu"


class Sorted(NamedTuple):
    """The order in which a ragged batch is read: rows from long to short, position by position."""

    order: torch.Tensor  # (B,), the row that stands at each rank
    sizes: list  # sizes[t] rows have a token at position t
    length: int  # T
    places: torch.Tensor  # (N,), where each token stands in an array (T, B) of ranks


def sort_rows(mask):
    """The layout of a right-padded batch, from its mask (B, T).

    On an accelerator nothing is sorted and padding is read too: to know the lengths the host would have to
    wait, and the time lost would be more than the time won.

    >>> sort_rows(torch.tensor([[1, 0, 0], [1, 1, 0]])).sizes
    [2, 1]
    """
    rows, length = mask.shape
    if not on_cpu(mask):
        places = torch.arange(rows * length, device=mask.device)
        return Sorted(torch.arange(rows, device=mask.device), [rows] * length, length, places)
    lengths, order = (mask == 1).sum(dim=1).sort(descending=True, stable=True)
    reaches = lengths > torch.arange(length)[:, None]  # (T, B)
    sizes = [size for size in reaches.sum(dim=1).tolist() if size]
    return Sorted(order, sizes, length, reaches.reshape(-1).nonzero()[:, 0])


def to_sorted(x, layout):
    """The entries of x (B, T) that `layout` reads, in its order, (N,)."""
    return x.index_select(0, layout.order).t().reshape(-1).index_select(0, layout.places)


def from_sorted(x, layout):
    """Back from (N,) to (B, T), 0 at padding.

    >>> layout = sort_rows(torch.tensor([[1, 0], [1, 1]]))
    >>> from_sorted(to_sorted(torch.tensor([[1, 9], [2, 3]]), layout), layout)
    tensor([[1, 0],
            [2, 3]])
    """
    rows = len(layout.order)
    flat = x.new_zeros(layout.length * rows).index_copy(0, layout.places, x)
    ranks = torch.argsort(layout.order)
    return flat.view(layout.length, rows).t().index_select(0, ranks)


def read(model, inputs, layout, skip=0):
    """The state after each token of `inputs` (B, T), (N, H) in the order of `layout`.

    Those of the first `skip` positions are left out of the answer.
    """
    if not on_cpu(inputs):
        return read_plainly(model, inputs)[skip:].reshape(-1, model.gru.hidden_size)
    return ReadSorted.apply(*model.gates(), to_sorted(inputs, layout), layout.sizes, skip)


def read_plainly(model, inputs):
    """The same by PyTorch's own GRU on the padded batch, (T, B, H): on a GPU the fast way."""
    one_hot = nn.functional.one_hot(inputs.t(), model.vocab_size + 1)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # or the ratios are not 1
        return model.gru(one_hot.to(model.head.weight.dtype))[0]


class ReadSorted(torch.autograd.Function):
    """`cell` over a sorted batch, with its backward pass written out; `read_plainly` is its test.

    With d the gradient in h_t, the formulas of `cell` give

        dc = d (1 - z) (1 - c^2)      into table_c
        dr = dc m r (1 - r)           into table_r and W_r
        dz = d (h_{t-1} - c) z (1 - z)
        dm = dc r
        gradient in h_{t-1} = d z + (dr, dz, dm) W^T

    Autograd would make the same products, with many more passes over memory between them.
    """

    @staticmethod
    def forward(ctx, table, table_c, weights, tokens, sizes, skip):
        """Tokens (N,), sorted, sizes[t] of them at position t, to states (N, H)."""
        states = table.new_empty(len(tokens), len(weights))
        steps, state = [], None
        for ids, after in zip(tokens.split(sizes), states.split(sizes), strict=True):
            before = None if state is None else state[: len(ids)]
            *kept, state = cell(table, table_c, weights, ids, before, out=after)
            if any(ctx.needs_input_grad):
                steps.append((ids, *kept))
        ctx.save_for_backward(table, table_c, weights, states)
        ctx.steps, ctx.sizes, ctx.skip = steps, sizes, skip
        return states[sum(sizes[:skip]) :]

    @staticmethod
    def backward(ctx, gradient):
        """The gradient in the states to those in the tables and the weights."""
        table, table_c, weights, states = ctx.saved_tensors
        d_table, d_table_c, d_weights = (x.new_zeros(x.shape) for x in (table, table_c, weights))
        states = states.split(ctx.sizes)
        # The states that `skip` left out have no gradient but what comes from later ones.
        left_out = [gradient.new_zeros(()).expand_as(state) for state in states[: ctx.skip]]
        gradients = [*left_out, *gradient.split(ctx.sizes[ctx.skip :])]
        d = gradients[-1] if gradients else None
        # One array for all steps, so that it stays in the processor's cache.
        room = gradient.new_empty(max(ctx.sizes, default=0), table.shape[1])
        for t, (ids, r, z, m, c) in reversed(list(enumerate(ctx.steps))):
            before = states[t - 1][: len(ids)] if t else torch.zeros_like(c)
            gates = room[: len(ids)]
            d_r, d_z, d_m = by_gate(gates)
            d_c = tanh_backward(torch.addcmul(d, d, z, value=-1), c)
            sigmoid_backward.grad_input(d_c * m, r, grad_input=d_r)
            sigmoid_backward.grad_input((before - c).mul_(d), z, grad_input=d_z)
            torch.mul(d_c, r, out=d_m)
            d_table.index_add_(0, ids, gates)
            d_table_c.index_add_(0, ids, d_c)
            if t:
                d_weights.addmm_(before.t(), gates)
                d_before = gradients[t - 1].clone()
                d_before[: len(ids)].addcmul_(d, z).addmm_(gates, weights.t())
                d = d_before
        return d_table, d_table_c, d_weights, None, None, None


# g s (1 - s) and g (1 - t^2), each in one pass.
sigmoid_backward = torch.ops.aten.sigmoid_backward
tanh_backward = torch.ops.aten.tanh_backward


class Generated(NamedTuple):
    """Responses as they were drawn, right-padded with 0, on the device of the model."""

    tokens: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T), 1 up to the first EOS and 0 behind it
    logp: torch.Tensor  # (B, T), log-probs under the distribution sampled from


@torch.no_grad()
def generate(model, prompts, max_length, eos=None, temperature=1.0, generator=None):
    """Let a language model write a response to each prompt.

    The state is carried from token to token, and on the CPU a row that has written EOS is not computed
    any further. On an accelerator all rows run to `max_length`: to know which are finished, the host would
    have to wait at every token. `generate_plainly` is the test of this function.

    Parameters
    ----------
    model : TokenGRU with V outputs
    prompts : (B, P) int64 tensor on the model's device; P may be 0
    max_length : T, the most tokens of a response
    eos : the token that ends a response, or None: then all have T tokens
    temperature : divides the logits, above 0
    generator : torch.Generator of the CPU, so that the same seed draws the same on every device

    Returns
    -------
    Generated

    Examples
    --------
    >>> model = TokenGRU(vocab_size=4, hidden=8, outputs=4)
    >>> generate(model, torch.zeros(2, 0, dtype=torch.long), max_length=3).tokens.shape
    torch.Size([2, 3])
    """
    rows, device = len(prompts), prompts.device
    uniform = torch.rand(max_length, rows, generator=generator).to(device)
    gates, state = model.gates(), None
    for column in begin(model, prompts).unbind(1):
        state = cell(*gates, column, state)[-1]
    tokens, logp = state.new_zeros(2, max_length, rows).unbind(0)
    tokens, mask = tokens.long(), torch.zeros_like(tokens, dtype=torch.bool)
    running = torch.arange(rows, device=device)  # the rows that `state` stands for
    unfinished = torch.ones_like(running, dtype=torch.bool)  # and which of these have not written EOS
    for t in range(max_length):
        all_logp = torch.log_softmax(model.head(state) / temperature, dim=-1)
        drawn = draw(all_logp, uniform[t].index_select(0, running))
        drawn_logp = all_logp.gather(1, drawn[:, None])[:, 0]
        tokens[t].index_copy_(0, running, drawn * unfinished)
        logp[t].index_copy_(0, running, drawn_logp * unfinished)
        mask[t].index_copy_(0, running, unfinished)
        if eos is not None:
            unfinished = unfinished & (drawn != eos)
            if on_cpu(state) and not unfinished.all():
                left = unfinished.nonzero()[:, 0]
                running, drawn, state = (x.index_select(0, left) for x in (running, drawn, state))
                unfinished = unfinished.index_select(0, left)
                if len(left) == 0:
                    break
        if t + 1 < max_length:
            state = cell(*gates, drawn, state)[-1]
    return Generated(tokens.t().contiguous(), mask.t().long(), logp.t().contiguous())


def draw(logp, u):
    """`sample_token` in torch: log-probs (B, V) and uniform numbers (B,) to tokens (B,), by inverse CDF.

    >>> draw(torch.tensor([[0.5, 0.25, 0.25]]).log().expand(2, 3), torch.tensor([0.6, 0.2]))
    tensor([1, 0])
    """
    cdf = logp.exp().cumsum(dim=-1)
    total = cdf[:, -1:]
    # Rounding could lift the product to the total, and then no token would be left above it.
    target = torch.minimum(u[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target, right=True)[:, 0]


@torch.no_grad()
def generate_plainly(model, prompts, max_length, eos=None, temperature=1.0, generator=None):
    """`generate` as one would write it first: the whole prefix is read anew for every token."""
    rows = len(prompts)
    uniform = torch.rand(max_length, rows, generator=generator).to(prompts.device)
    text = begin(model, prompts)
    unfinished = torch.ones_like(text[:, 0], dtype=torch.bool)
    tokens, mask, logp = [], [], []
    for t in range(max_length):
        all_logp = torch.log_softmax(model.head(read_plainly(model, text)[-1]) / temperature, dim=-1)
        drawn = draw(all_logp, uniform[t])
        text = torch.cat([text, drawn[:, None]], dim=1)
        tokens.append(drawn * unfinished)
        logp.append(all_logp.gather(1, drawn[:, None])[:, 0] * unfinished)
        mask.append(unfinished.long())
        if eos is not None:
            unfinished = unfinished & (drawn != eos)
    return Generated(*(torch.stack(columns, dim=1) for columns in (tokens, mask, logp)))


def begin(model, prompts):
    """The prompts behind the token that says where a text begins, (B, 1 + P)."""
    return torch.cat([prompts.new_full((len(prompts), 1), model.vocab_size), prompts], dim=1)


def read_responses(model, prompts, tokens, mask):
    """What the model's head gives *before* each token of the responses, and how it is laid out.

    Parameters
    ----------
    model : TokenGRU
    prompts : (B, P) int64
    tokens : (B, T) int64, right-padded
    mask : (B, T) of 1 for a token of the response; no holes

    Returns
    -------
    (outputs, layout): (N, outputs of the head), one row for each real token, in the order of `layout`, by
    which `from_sorted` brings what is made of them back to (B, T)
    """
    layout = sort_rows(mask)
    prompt_length = prompts.shape[1]
    # The state after BOS, the prompt and y_<t is what token t is drawn from: the last token is never read.
    inputs = torch.cat([begin(model, prompts), tokens[:, :-1]], dim=1)
    rows = len(prompts)
    everywhere = torch.arange(rows * prompt_length, device=mask.device)
    whole_text = Sorted(
        layout.order,
        [rows] * prompt_length + layout.sizes,
        prompt_length + layout.length,
        torch.cat([everywhere, rows * prompt_length + layout.places]),
    )
    return model.head(read(model, inputs, whole_text, skip=prompt_length)), layout


def response_logprobs(model, prompts, tokens, mask, temperature=1.0):
    """Log-probs of the drawn tokens, (B, T), 0 at padding, and the logits that they were drawn from.

    Arguments as `read_responses`, for a model with V outputs.

    Returns
    -------
    (logp, logits, layout): logits (N, V) after temperature, a row for each real token in the order of
    `layout`

    Examples
    --------
    >>> model = TokenGRU(vocab_size=4, hidden=8, outputs=4)
    >>> tokens, mask = torch.tensor([[1, 2], [3, 0]]), torch.tensor([[1, 1], [1, 0]])
    >>> logp, logits, _ = response_logprobs(model, torch.zeros(2, 0, dtype=torch.long), tokens, mask)
    >>> logp.shape, logits.shape, logp[1, 1].item()
    (torch.Size([2, 2]), torch.Size([3, 4]), 0.0)
    """
    outputs, layout = read_responses(model, prompts, tokens, mask)
    logits = outputs / temperature
    drawn = to_sorted(tokens, layout)[:, None]
    logp = torch.log_softmax(logits, dim=-1).gather(1, drawn)[:, 0]
    return torch.where(mask == 1, from_sorted(logp, layout), 0), logits, layout


def response_values(model, prompts, tokens, mask):
    """A number before each token, (B, T), 0 at padding; arguments as `read_responses`, for a critic."""
    outputs, layout = read_responses(model, prompts, tokens, mask)
    return torch.where(mask == 1, from_sorted(outputs[:, 0], layout), 0)
