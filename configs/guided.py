"""Does a replay of gradients that agree with verification help under delay?

Logistic regression on breast cancer data under geometric delays (the staleness of many
workers with memoryless service times): SGD, and guided SGD (Sharma, arXiv:2101.07259),
which at every 10th update uses up to 4 of the last gradients once more. All have the
same number of gradients and the same steps to choose from. Guided SGD also needs a
verification loss at each update, the forward pass of `verification` examples: here five
times as many as a batch has. Last, as many replays without a verification loss. The
author's code computes an old gradient anew; here it is used again, which costs nothing.

    python -m experiments.main --config=configs/guided.py --workdir=runs/guided
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, optimizer, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "period")
LIMITS |= at_least(0, "mean_delay", "max_delay")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Plain, and two numbers of replays."""
    return ConfigDict(
        dict(
            learning_rate=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
            mean_delay=(0, 4, 16),  # of geometric delays, updates
            max_delay=96,  # updates; a longer delay is as long as this
            period=10,  # rho, updates
            replays=(1, 4),  # psi, the most gradients replayed at once
            verification=42,  # training examples, a tenth as in the author's code
            batch_size=8,  # examples an update
            updates=1000,
            seeds=20,
            tuning_seeds=6,  # that choose the step size, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each number of replays."""
    task = tasks.breast_cancer(batch_size=config.batch_size)
    drawn = tasks.breast_cancer(batch_size=config.verification).batches(0, 0, 1)
    examples = jax.tree.map(lambda leaf: leaf[0], drawn)

    def arm(name, *before):
        def late(learning_rate, mean_delay, key):
            rule = optax.chain(*before, optax.sgd(learning_rate))
            delay = dj.delays.geometric(key, mean_delay)
            return dj.delayed(rule, delay, max_delay=config.max_delay)

        return Arm(training=optimizer(late), labels={"replays": name})

    def guided(replays, loss_fn):
        return dj.guided(loss_fn, period=config.period, replays=replays)

    def verified(params):
        return task.loss(params, examples)

    def unverified(params):  # it never falls: each batch counts as consistent
        return 0.0

    most = max(config.replays)
    return Experiment(
        question="Does a replay of gradients that agree with verification help?",
        task=task,
        arms=[
            arm("none"),
            *(arm(f"up to {n}", guided(n, verified)) for n in config.replays),
            arm(f"{most}, unverified", guided(most, unverified)),
        ],
        grid={"learning_rate": config.learning_rate, "mean_delay": config.mean_delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        tuning_seeds=config.tuning_seeds,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("mean_delay", "train_loss", fixed=False),
            figures.over(
                *("learning_rate", "train_loss"),
                fixed=False,
                only={"mean_delay": (16,)},
                title="Is a replay more than a larger step? Mean delay 16",
            ),
        ],
    )


GUIDED, UNVERIFIED, PLAIN = "up to 4", "4, unverified", "none"


def tuned_over_plain(delay: float) -> Measure:
    """Training loss of guided SGD over SGD's, each at its best step."""
    at = dict(mean_delay=delay)
    return ratio(*(tuned("train_loss", replays=r, **at) for r in (GUIDED, PLAIN)))


def small_over_plain(replays: str) -> Measure:
    """The same at a step of 0.01 and a mean delay of 16."""
    at = dict(learning_rate=0.01, mean_delay=16)
    return ratio(*(mean("train_loss", replays=r, **at) for r in (replays, PLAIN)))


def error_less() -> Measure:
    """Test error of guided SGD less SGD's, at a mean delay of 16."""
    at = dict(mean_delay=16)
    return difference(*(tuned("test_error", replays=r, **at) for r in (GUIDED, PLAIN)))


def published(config: ConfigDict) -> list[Published]:
    """At equal data and each at its best step."""
    del config
    paper = dict(
        source="Sharma (2021), arXiv:2101.07259",
        said="replays undo the deviation that delay causes",
        bound_is_ours=True,
    )
    loss = "At a mean delay of 16 guided SGD has less training loss than SGD"
    error = (
        "Its test error is no larger than SGD's, by one example of 142 (our reading)"
    )
    return [
        Published(text=loss, measure=tuned_over_plain(16), at_most=1.0, **paper),
        Published(text=error, measure=error_less(), at_most=1 / 142, **paper),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Training losses over SGD's training loss."""
    del config
    return [
        Record("Loss, guided / SGD, mean delay 4", tuned_over_plain(4), 1.012, 0.0098),
        Record(
            "Loss, guided / SGD, mean delay 16", tuned_over_plain(16), 1.061, 0.0350
        ),
        Record(
            "Loss, guided / SGD, step 0.01", small_over_plain(GUIDED), 0.931, 0.00095
        ),
        Record(
            "And without verification", small_over_plain(UNVERIFIED), 0.9093, 0.0016
        ),
    ]


def answer(found: Found) -> str:
    """The loss over plain SGD's, with the step tuned and with a small one."""

    def times(measure):
        return between(measure, found, form=".3f")

    return (
        "At a mean delay of 16 and each with its best step, guided SGD has"
        f" {times(tuned_over_plain(16))} times the training loss of SGD. At a step of"
        f" 0.01 it has {times(small_over_plain(GUIDED))} times SGD's loss, and as many"
        " replays without verification have"
        f" {times(small_over_plain(UNVERIFIED))} times."
    )
