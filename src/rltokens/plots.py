"""The book's figures. Functions take arrays and give back a Matplotlib figure.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision can tell apart;
no figure relies on colour alone.
"""

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, GREY, PURPLE = "#0072B2", "#D55E00", "#009E73", "#8C8C8C", "#CC79A7"
MARKERS = "osD^v"


def response_bars(probabilities, rewards):
    """A bar for each response, rewarded ones hatched; both arguments are (N,).

    >>> figure = response_bars([0.5, 0.25, 0.25], [0.0, 1.0, 0.0])
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['reward 0', 'reward 1']
    >>> plt.close(figure)
    """
    probabilities, rewarded = np.asarray(probabilities), np.asarray(rewards) > 0
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    place = np.arange(len(probabilities))
    axes.bar(place[~rewarded], probabilities[~rewarded], color=GREY, label="reward 0")
    axes.bar(
        place[rewarded],
        probabilities[rewarded],
        color=ORANGE,
        hatch="////",
        edgecolor="white",
        label="reward 1",
    )
    axes.set(xlabel="response, in lexicographic order", ylabel="probability", xlim=(-1, len(place)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def lines(x, curves, xlabel, ylabel, log_y=False):
    """One line a curve, told apart by colour and marker; `curves` maps a label to (N,).

    >>> figure = lines([0, 1], {"reward": [0.1, 0.4]}, xlabel="step", ylabel="score")
    >>> figure.axes[0].get_xlabel()
    'step'
    >>> plt.close(figure)
    """
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for i, (label, y) in enumerate(curves.items()):
        colour = (BLUE, ORANGE, GREEN, GREY, PURPLE)[i % 5]
        axes.plot(x, y, color=colour, marker=MARKERS[i % 5], markevery=max(1, len(x) // 8), label=label)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if log_y:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def bands(x, curves, xlabel, ylabel, log_y=False):
    """`lines` with a band from the lowest to the highest seed; `curves` maps a label to (seeds, N).

    >>> figure = bands([0, 1], {"reward": [[0.1, 0.4], [0.3, 0.6]]}, xlabel="step", ylabel="score")
    >>> figure.axes[0].lines[0].get_ydata()  # the mean over the seeds
    array([0.2, 0.5])
    >>> plt.close(figure)
    """
    curves = {label: np.asarray(seeds, dtype=np.float64) for label, seeds in curves.items()}
    means = {label: seeds.mean(axis=0) for label, seeds in curves.items()}
    figure = lines(x, means, xlabel, ylabel, log_y)
    axes = figure.axes[0]
    for line, seeds in zip(axes.lines, curves.values(), strict=True):
        axes.fill_between(x, seeds.min(axis=0), seeds.max(axis=0), color=line.get_color(), alpha=0.2, lw=0)
    return figure


def bars(values, ylabel):
    """One bar a label, with its number above it; `values` maps a label to a number.

    >>> figure = bars({"none": 2.0, "value": 0.5}, "variance")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['2', '0.5']
    >>> plt.close(figure)
    """
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    drawn = axes.bar(list(values), list(values.values()), color=BLUE, width=0.6)
    axes.bar_label(drawn, [f"{value:.3g}" for value in values.values()], padding=2)
    axes.set(ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


# What a run is watched by: title, the metrics drawn in it, the unit.
PANELS = (
    ("Reward", ("reward", "gold"), "score"),
    ("Distance to the reference", ("kl_reference",), "nats a response"),
    ("Distance to the optimum", ("kl_optimum",), "nats a response"),
    ("Fluency", ("fluency",), "nats a token"),
    ("Length", ("length",), "tokens"),
    ("Entropy", ("entropy",), "nats a token"),
    ("Step", ("clip_fraction", "kl_old"), "share, nats a token"),
    ("Critic", ("explained_variance",), "share of variance"),
    ("Price of a nat", ("beta",), "beta"),
    ("Speed", ("tokens_per_second",), "tokens a second"),
)


def dashboard(history):
    """The curves of a run, from the metrics of its iterations; panels without a number are left out.

    >>> figure = dashboard([{"iteration": i, "reward": i / 2, "gold": i / 2, "beta": 0.1} for i in range(3)])
    >>> [axes.get_title() for axes in figure.axes if axes.lines]
    ['Reward', 'Price of a nat']
    >>> plt.close(figure)
    """

    def curve(name):
        values = [metrics.get(name) for metrics in history]
        if name == "tokens_per_second":
            values = [phases and phases["all"] for phases in values]
        return np.array([np.nan if v is None or np.isinf(v) else v for v in values])

    shown = [panel for panel in PANELS if np.isfinite(curve(panel[1][0])).any()]
    rows = -(-len(shown) // 3)
    figure, grid = plt.subplots(rows, 3, figsize=(11, 2.6 * rows), layout="constrained", sharex=True)
    x = [metrics["iteration"] for metrics in history]
    for axes, (title, names, unit) in zip(grid.flat, shown, strict=False):
        for name, colour, style in zip(names, (BLUE, ORANGE), ("-", "--"), strict=False):
            axes.plot(x, curve(name), style, color=colour, label=name.replace("_", " "))
        axes.set(title=title, ylabel=unit)
        if names == ("kl_optimum",) and (curve("kl_optimum") > 0).any():
            axes.set_yscale("log")
        if len(names) > 1:
            axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_axis_off()
    figure.supxlabel("iteration")
    return figure


def over_distance(groups, bins=12):
    """Proxy and true reward against the distance from the reference: Goodhart's law, if it is at work.

    `groups` maps a label to the histories of several seeds. Each seed's iterations are put in bins of equal
    width in the root of the KL; lines are means over seeds, bands reach from the lowest to the highest seed,
    and a bin that fewer than half of the seeds came through is left out. Rewards count from the start.

    >>> history = [{"kl_reference": k, "reward": k, "gold": -k} for k in (0.0, 1.0, 4.0)]
    >>> figure = over_distance({"one seed": [history]}, bins=2)
    >>> figure.axes[0].lines[0].get_ydata()  # 0 in the first bin, the mean of 1 and 4 in the second
    array([0. , 2.5])
    >>> plt.close(figure)
    """
    figure, grid = plt.subplots(
        1, len(groups), figsize=(4.6 * len(groups), 3.8), layout="constrained", sharey=True, squeeze=False
    )
    for axes, (label, histories) in zip(grid.flat, groups.items(), strict=True):
        furthest = max(metrics["kl_reference"] for history in histories for metrics in history)
        edges = np.linspace(0, furthest**0.5, bins + 1)
        middle = ((edges[:-1] + edges[1:]) / 2) ** 2
        for name, legend, colour, style in (
            ("reward", "reward model", BLUE, "-"),
            ("gold", "true reward", ORANGE, "--"),
        ):
            by_seed = np.full((len(histories), bins), np.nan)
            for seed, history in enumerate(histories):
                distance = np.maximum([metrics["kl_reference"] for metrics in history], 0.0) ** 0.5
                gained = np.array([metrics[name] for metrics in history]) - history[0][name]
                at = np.clip(np.digitize(distance, edges) - 1, 0, bins - 1)
                for b in set(at):
                    by_seed[seed, b] = gained[at == b].mean()
            shown = 2 * np.isfinite(by_seed).sum(axis=0) >= len(histories)
            y = by_seed[:, shown]
            axes.fill_between(middle[shown], np.nanmin(y, 0), np.nanmax(y, 0), color=colour, alpha=0.2, lw=0)
            axes.plot(middle[shown], np.nanmean(y, 0), style, color=colour, label=legend)
        axes.set(title=label, xlabel="KL to the reference, nats a response")
        axes.axhline(0.0, color=GREY, lw=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("gained since the start")
    grid[0, 0].legend(frameon=False)
    return figure
