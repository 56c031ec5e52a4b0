"""What is said of the gap under delay, and records of `configs/constant_delay.py`."""

import numpy as np
from ml_collections import ConfigDict

from experiments import Published, analysis
from experiments.results.estimates import Measure
from experiments.results.measures import difference, kept, tuned


def gap(delay: float, longest: float) -> Measure:
    """Test loss less training loss, at the step that is best for the longest delay."""
    return kept("gap", best_at=dict(delay=longest), delay=delay)


def gap_where_equal(longest: float) -> Measure:
    """What the longest delay adds to the gap, at that step and at one training loss.

    The gap of a seed without delay is read where its training loss falls to the
    training loss that the same seed has at the end with the longest delay.
    """

    def measure(found):
        late = analysis.where(found.best, delay=longest)
        step = late["learning_rate"].iloc[0]
        curves = analysis.where(found.curves, delay=0, learning_rate=step)
        added = []
        for row in late.itertuples():
            fresh = curves[curves["seed"] == row.seed].sort_values("train_loss")
            fresh_gap = fresh["test_loss"] - fresh["train_loss"]
            same = np.interp(row.train_loss, fresh["train_loss"], fresh_gap)
            added.append(row.test_loss - row.train_loss - same)
        return float(np.mean(added))

    return measure


def published(config: ConfigDict) -> list[Published]:
    """What the paper says of one step size, and the same at one training loss."""
    longest = max(config.delay)
    stated = dict(
        source="Deng, Shen, Li, Sun, Li, Tao (2023), arXiv:2308.09430",
        said="at a fixed step size a delay reduces the generalization error",
        setting="convex quadratics in theory; RCV1, GISETTE, MNIST and IJCNN",
    )
    tried = f"A network on 1,438 digits, a delay of {longest} and the step best for it."
    return [
        Published(
            text="At one step size a delay makes the train/test gap smaller",
            measure=difference(gap(longest, longest), gap(0, longest)),
            at_most=0.0,
            bound_is_ours=True,
            tried=tried,
            **stated,
        ),
        Published(
            text="It does so where training has come as far, at one training loss",
            measure=gap_where_equal(longest),
            at_most=0.0,
            bound_is_ours=True,
            tried=tried,
            **stated,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Accuracies at each one's best step, gaps there, and how much was learned."""
    return {
        "Test accuracy without delay": tuned("test_accuracy", delay=0),
        "Test accuracy 16 updates late": tuned("test_accuracy", delay=16),
        "Test accuracy 64 updates late": tuned("test_accuracy", delay=64),
        "Gap without delay, best step": tuned("gap", delay=0),
        "Gap 16 updates late, best step": tuned("gap", delay=16),
        "Gap 32 late, step best for the longest": gap(32, max(config.delay)),
        "Training loss 16 late": tuned("train_loss", delay=16),
    }
