"""README's picture: the loss that a late all-reduce loses, over the time it saves.

    python -m docs.lost_or_saved docs/lost_or_saved

It trains a small Transformer with Adam and with Muon, 200 updates without delay and up
to 400 one update late, at four step sizes. If lateness saves a share s of the time of
an update, then N updates take as long as N / (1 - s) late ones. At each share both have
the step size that is best there under seeds that are not shown. It takes two minutes on
two cores and writes the numbers (.csv) and the picture (.png).
"""

import sys

import numpy as np
import optax
import pandas as pd
from matplotlib.figure import Figure

import delayjax as dj
from experiments import Arm, Experiment, optimizer, run, tasks
from experiments.figures import palette, sheets

UPDATES, EVERY = 200, 40  # without delay; between evaluations
SHOWN, TUNING = 5, 3  # seeds
OPTIMIZERS = {
    "Adam": (optax.adam, (0.0025, 0.005, 0.01, 0.02)),
    "Muon": (
        lambda rate: optax.contrib.muon(rate, consistent_rms=0.2),
        (0.005, 0.01, 0.02, 0.04),
    ),
}
PLACES = {
    "eight H100": 1,
    "a slice of v5e": 5,
    "two slices": 18,
    "100 Mbit/s": 48,
}
"""Percent of an update's time that lateness saves there.

From docs/pods.md, What lateness buys (compiled, not run), and docs/costs.md, Overlap
over a slow link (10M parameters, no latency).
"""


def trained(delay: int, updates: int) -> pd.DataFrame:
    """The curves of all seeds and step sizes."""

    def arm(name):
        make, rates = OPTIMIZERS[name]
        return Arm(
            training=optimizer(
                lambda learning_rate: dj.delayed(make(learning_rate), delay)
            ),
            labels={"optimizer": name},
            grid={"learning_rate": rates},
        )

    return run(
        Experiment(
            question="What does one late update cost?",
            task=tasks.char_lm(batch_size=4, context=32, evaluated_tokens=6144),
            arms=[arm(name) for name in OPTIMIZERS],
            seeds=SHOWN + TUNING,
            updates=updates,
            evaluate_every=EVERY,
        )
    ).curves


def at_best_step(curves: pd.DataFrame, name: str, update: int) -> np.ndarray:
    """The held-out loss of each shown seed, at the step that the others choose."""
    rows = curves[(curves["optimizer"] == name) & (curves["update"] == update)]
    losses = rows.pivot(index="seed", columns="learning_rate", values="test_loss")
    best = losses[SHOWN:].mean().idxmin()
    return losses[best][:SHOWN].to_numpy()


def table() -> pd.DataFrame:
    """For each optimizer and share of time saved, the loss lost: mean and interval."""
    waits, late = trained(0, UPDATES), trained(1, 2 * UPDATES)
    rows = []
    for name in OPTIMIZERS:
        fresh = at_best_step(waits, name, UPDATES)
        for update in range(UPDATES, 2 * UPDATES + 1, EVERY):
            lost = at_best_step(late, name, update) - fresh
            half = 2.776 * lost.std(ddof=1) / SHOWN**0.5  # Student's t, 4 degrees
            saved = 100 * (1 - UPDATES / update)
            rows.append(
                (name, saved, lost.mean(), lost.mean() - half, lost.mean() + half)
            )
    return pd.DataFrame(rows, columns=["optimizer", "saved", "lost", "low", "high"])


@sheets.STYLED
def draw(rows: pd.DataFrame) -> Figure:
    """A line for each optimizer; above 0 it is better to wait."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for name, style in palette.styles(list(OPTIMIZERS)).items():
        line = rows[rows["optimizer"] == name]
        axis.plot(line["saved"], line["lost"], color=style.color, label=name)
        axis.fill_between(
            line["saved"],
            line["low"],
            line["high"],
            color=style.color,
            alpha=0.18,
            lw=0,
        )
    axis.axhline(0.0, color="0.3", lw=1)
    axis.text(50, 0.005, "waiting is better", ha="right", va="bottom", fontsize=9)
    axis.text(0, -0.005, "late is better", ha="left", va="top", fontsize=9)
    for place, share in PLACES.items():
        axis.axvline(share, color="0.7", lw=1, ls=":")
        axis.text(share, axis.get_ylim()[1], place, rotation=30, fontsize=8)
    axis.set_xlabel("time saved in an update (%)")
    axis.set_ylabel("loss lost in equal time (nats)")
    figure.suptitle("One step late: loss lost against time saved")
    axis.legend(title="95 % intervals, 5 seeds", loc="lower left")
    return figure


if __name__ == "__main__":
    numbers = table().round(3)
    numbers.to_csv(f"{sys.argv[1]}.csv", index=False)
    sheets.save(draw(numbers), f"{sys.argv[1]}.png")
