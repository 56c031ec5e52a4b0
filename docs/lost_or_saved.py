"""README's picture: the loss that a late all-reduce loses, over the time it saves.

    python -m docs.lost_or_saved docs/lost_or_saved

It trains the model of configs/one_late.py with Adam and with Muon: N = 400 updates
without delay, and 400 to 800 updates one update late. If lateness saves a share s of
the time of an update, then N updates take as long as N / (1 - s) late ones. The
schedule ends with each run. The momentum is the searched one of configs/one_late.py;
the step is the best of four around the searched one, under seeds that are not shown.
It takes half an hour on two cores and writes the numbers (.csv) and the picture (.png).
"""

import dataclasses
import sys

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from configs import one_late
from experiments import run
from experiments.figures import palette, sheets

SHOWN, TUNING = 5, 3  # seeds
LATE = (1.0, 1.2, 1.6, 2.0)  # late updates in the time of one without delay
FACTORS = (0.5, 0.7, 1.0, 1.4)  # of the searched step
FOUND = {
    ("Adam", 0): (0.0071, 0.32),
    ("Adam", 1): (0.0042, 0.35),
    ("Muon", 0): (0.031, 0.21),
    ("Muon", 1): (0.021, 0.20),
}
"""Step and 1 - momentum that the search of configs/one_late.py ends at."""
PLACES = {
    "eight H100": 1,
    "two slices of v5e": 6,
    "100 Mbit/s": 48,
}
"""Percent of an update's time that lateness saves there.

From docs/pods.md, What lateness buys and Slices (compiled, not run), and docs/costs.md,
Overlap over a slow link (10M parameters, no latency).
"""


def trained() -> pd.DataFrame:
    """The final losses of all seeds and step sizes."""
    config = one_late.get_config()

    def arm(name, delay, longer):
        step, decay = FOUND[name, delay]
        grid = {"delay": (delay,), "decay": (decay,)}
        grid["learning_rate"] = tuple(round(step * factor, 6) for factor in FACTORS)
        one = one_late.arm(
            name, config, updates=round(longer * config.updates), grid=grid
        )
        return dataclasses.replace(one, labels={**one.labels, "longer": longer})

    ways = [(0, 1.0), *((1, longer) for longer in LATE)]
    return run(
        dataclasses.replace(
            one_late.experiment(config),
            arms=[arm(name, *way) for name in one_late.OPTIMIZERS for way in ways],
            grid={},
            search=None,
            seeds=SHOWN + TUNING,
            evaluations=1,
            answer=(),
            figures=(),
        )
    ).results


def at_best_step(
    results: pd.DataFrame, name: str, delay: int, longer: float
) -> np.ndarray:
    """The held-out loss of each shown seed, at the step that the others choose."""
    rows = results[
        (results["optimizer"] == name)
        & (results["delay"] == delay)
        & (results["longer"] == longer)
    ]
    chosen = rows.pivot(index="seed", columns="learning_rate", values="train_loss")
    losses = rows.pivot(index="seed", columns="learning_rate", values="test_loss")
    best = chosen[SHOWN:].mean().idxmin()
    return losses[best][:SHOWN].to_numpy()


def table() -> pd.DataFrame:
    """For each optimizer and share of time saved, the loss lost: mean and interval."""
    results = trained()
    rows = []
    for name in one_late.OPTIMIZERS:
        fresh = at_best_step(results, name, 0, 1.0)
        for longer in LATE:
            lost = at_best_step(results, name, 1, longer) - fresh
            half = 2.776 * lost.std(ddof=1) / SHOWN**0.5  # Student's t, 4 degrees
            saved = 100 * (1 - 1 / longer)
            rows.append(
                (name, saved, lost.mean(), lost.mean() - half, lost.mean() + half)
            )
    return pd.DataFrame(rows, columns=["optimizer", "saved", "lost", "low", "high"])


@sheets.STYLED
def draw(rows: pd.DataFrame) -> Figure:
    """A line for each optimizer; above 0 it is better to wait."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axis = figure.subplots()
    for name, style in palette.styles(list(one_late.OPTIMIZERS)).items():
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
    axis.text(0, 0.005, "waiting is better", ha="left", va="bottom", fontsize=9)
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
