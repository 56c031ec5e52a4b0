"""Does delay compensation undo the harm of a stale gradient?

SGD trains an MLP on scikit-learn's digits: plain, with DC-ASGD in both forms (Zheng et
al., arXiv:1609.08326), and with Gap-Aware (Barkai et al., arXiv:1909.10802). At each
delay the step of each rule and the strength of DC-ASGD are searched, until the optimum
is found.

    python -m experiments.main --config=configs/compensation.py --workdir=runs/dc
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    optimizer,
    tasks,
)
from experiments.configs import at_least, check_delays, positive
from experiments.results.sizes import percent, points

LIMITS = at_least(0, "delay")
LIMITS |= positive("tolerance")

SMALL = {"updates": 60}
"""Values that the small size of the book changes, beside the numbers of seeds."""


def get_config() -> ConfigDict:
    """The config: delays, for three compensations and none."""
    return ConfigDict(
        dict(
            delay=(0, 3, 16, 32),  # updates
            batch_size=32,  # examples per update
            updates=1000,
            seeds=16,
            tolerance=0.05,  # of the search, a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each compensation."""
    max_delay = check_delays("delay", config.delay, config.updates)

    def of_late(compensate, learning_rate, delay):
        return dj.delayed(
            optax.chain(compensate, optax.sgd(learning_rate)),
            delay,
            max_delay=max_delay,
            keep_params=True,
        )

    def none(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    def dc(learning_rate, delay, strength):
        return of_late(dj.compensate_delay(strength), learning_rate, delay)

    def dc_adaptive(learning_rate, delay, strength):
        rule = dj.compensate_delay(strength, adaptive=True, decay=0.95)
        return of_late(rule, learning_rate, delay)

    def gap_aware(learning_rate, delay):
        return of_late(dj.gap_aware(learning_rate), learning_rate, delay)

    plain = {"compensation": "none"}

    def arm(name, make, **options):
        labels = dict(compensation=name)
        return Arm(training=optimizer(make), labels=labels, **options)

    # without strength it is plain SGD
    strong = dict(grid={"strength": Range(0.04, 2000.0, off=0.0)}, contains=plain)
    late = {"delay": [delay for delay in config.delay if delay]}
    return Experiment(
        question="Does delay compensation undo the harm of a stale gradient?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm("none", none),
            arm("Gap-Aware", gap_aware),
            arm("DC-ASGD-c", dc, **strong),
            arm("DC-ASGD-a", dc_adaptive, **strong),
        ],
        grid={"delay": config.delay, "learning_rate": Range(0.01, 3.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=[
            Effect(metric="train_loss", against=plain, size=percent(10), where=late),
            Effect(
                metric="test_error",
                against=plain | {"delay": 0},
                size=points(1),
                where={"delay": (0, 3, 16)},
            ),
        ],
        figures=[
            figures.over("delay", "train_loss", color="compensation", fixed=False),
            figures.over("delay", "test_error", color="compensation", fixed=False),
            figures.best_step("delay", "learning_rate", color="compensation"),
        ],
    )
