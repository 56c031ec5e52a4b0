"""Does a constant delay cost accuracy, and does it change the train/test gap?

An MLP on scikit-learn's digits, SGD, gradients 0 to 64 updates late, with the step
tuned anew at each delay, and with one step kept. At one step the gap between training
and test loss may fall with the delay (Deng et al., arXiv:2308.09430), but so does the
progress of training. So the gap is also compared at the same training loss.

    python -m experiments.main --config=configs/constant_delay.py --workdir=runs/gap
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, analysis, configs, figures, tasks
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import between, difference, kept, tuned
from experiments.results.tables import Found

LIMITS = configs.at_least(1, "width")
LIMITS |= configs.at_least(0, "delay")
LIMITS |= configs.positive("learning_rate")


def get_config() -> ConfigDict:
    """SGD, and delays longer than the default's."""
    return ConfigDict(
        dict(
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            delay=(0, 4, 8, 16, 32, 64),  # updates
            batch_size=32,  # examples an update
            width=32,  # hidden units
            updates=1500,
            seeds=20,
            tuning_seeds=6,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """42 cells, one program."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    return Experiment(
        question="Does a constant delay cost accuracy, or change the train/test gap?",
        task=tasks.digits_mlp(batch_size=config.batch_size, width=config.width),
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("delay", "test_error"),
            figures.over(
                "delay", "gap", title="How does delay change the train/test gap?"
            ),
            figures.best_step("delay"),
            figures.curves("train_loss"),
        ],
    )


def accuracy(delay: float) -> Measure:
    """Test accuracy at a delay, with the best step there."""
    return tuned("test_accuracy", delay=delay)


def gap(delay: float, longest: float) -> Measure:
    """Test loss less training loss, at the step that is best for the longest delay."""
    return kept("gap", best_at=dict(delay=longest), delay=delay)


def gap_where_equal(longest: float) -> Measure:
    """What the longest delay adds to the gap, at that step and at one training loss.

    Each seed without delay counts where its training loss falls to the one that the
    same seed has at the end of the longest delay.
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


def records(config: ConfigDict) -> list[Record]:
    """Accuracies at each one's best step, gaps there, and how much was learned."""
    longest = max(config.delay)
    return [
        Record("Test accuracy without delay", accuracy(0), 0.9716, 0.0019),
        Record("Test accuracy 16 updates late", accuracy(16), 0.9391, 0.0057),
        Record("Test accuracy 64 updates late", accuracy(64), 0.6696, 0.024),
        Record("Gap without delay, best step", tuned("gap", delay=0), 0.09638, 0.0057),
        Record(
            "Gap 16 updates late, best step", tuned("gap", delay=16), 0.04202, 0.0043
        ),
        Record(
            "Gap 32 late, step best for the longest", gap(32, longest), 0.04827, 0.0025
        ),
        Record("Training loss 16 late", tuned("train_loss", delay=16), 0.1987, 0.0059),
    ]


def answer(found: Found) -> str:
    """What the longest delay costs, and what it does to the gap."""
    longest = found.results["delay"].max()
    cost = estimate(difference(accuracy(0), accuracy(longest)), found).interval()
    added = difference(gap(longest, longest), gap(0, longest))
    one_step = between(added, found, same=0.0, form="+.3f")
    one_loss = between(gap_where_equal(longest), found, same=0.0, form="+.3f")
    return (
        f"A delay of {longest:g} updates costs {cost[0]:.3f} to {cost[1]:.3f} of test"
        " accuracy, each delay with its own best step. At one step size the train/test"
        f" gap changes by this (nats): {one_step}; where both have the same training"
        f" loss: {one_loss}."
    )
