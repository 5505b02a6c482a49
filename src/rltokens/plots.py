"""The book's figures. Functions take arrays and give back a Matplotlib figure.

Colours are those of Okabe and Ito (2008), which people with any kind of colour vision can tell apart;
no figure relies on colour alone.
"""

import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8C8C8C"
MARKERS = "osD^v"


def response_bars(probabilities, rewards):
    """A bar for each response, rewarded ones hatched; both arguments are (N,)."""
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
    """One line a curve, told apart by colour and marker; `curves` maps a label to (N,)."""
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for i, (label, y) in enumerate(curves.items()):
        colour = (BLUE, ORANGE, GREEN, GREY)[i % 4]
        axes.plot(x, y, color=colour, marker=MARKERS[i % 5], markevery=max(1, len(x) // 8), label=label)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if log_y:
        axes.set_yscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
