"""What do accuracy and run time pay for each other when 120 examples are split?

An update of 120 examples split among P workers: accuracy against simulated run time for
hardsync, 1-softsync and P-softsync (Zhang et al., arXiv:1511.05950), an MLP on digits.
A gradient of m examples takes 0.02 + 0.01 m seconds, an assumed cost. Rates are divided
by staleness. The server's step and momentum are tuned for each.

    python -m experiments.main --config=configs/tradeoff.py --workdir=runs/tradeoff
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Experiment,
    Published,
    Record,
    Simulation,
    along,
    figures,
    tasks,
)
from experiments.configs import at_least, below_one, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers", "examples")
LIMITS |= at_least(0, "overhead_seconds", "example_seconds")
LIMITS |= positive("learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """One to thirty workers."""
    return ConfigDict(
        dict(
            workers=(4, 15, 30),  # beside one
            split_examples=120,  # of an update of hardsync, among the workers
            overhead_seconds=0.02,  # of a gradient
            example_seconds=0.01,  # of each example in it
            service_spread=0.05,  # of a gradient's time, a share of it
            learning_rate=(0.03, 0.1, 0.2, 0.5, 1.0, 2.0),
            momentum=(0.0, 0.9),
            examples=27_000,  # twenty times all of them
            seeds=20,
            tuning_seeds=8,  # that choose step and momentum, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Three protocols for each number of workers."""
    protocols = dj.cluster.protocols
    inverse = dj.scale_by_staleness(dj.modulation.inverse)

    def arm(name, protocol, workers):
        batch = config.split_examples // workers
        seconds = config.overhead_seconds + config.example_seconds * batch
        service = dj.cluster.lognormal(seconds, config.service_spread)
        simulated = Simulation(dj.cluster.Cluster(workers, service), protocol)
        return Arm(
            training=along(simulated, optax.sgd, each=inverse),
            labels=dict(protocol=name, workers=workers),
            task=tasks.digits_mlp(batch_size=batch),
        )

    arms = [arm("hardsync", protocols.hardsync(), 1)]
    for workers in config.workers:
        arms.append(arm("hardsync", protocols.hardsync(), workers))
        arms.append(arm("1-softsync", protocols.n_softsync(1), workers))
        arms.append(arm("P-softsync", protocols.n_softsync(workers), workers))
    return Experiment(
        question="What do accuracy and run time pay for each other?",
        task=tasks.digits_mlp(),
        arms=arms,
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        examples=config.examples,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.curves(
                "test_error",
                against="seconds",
                only={"workers": config.workers[-1:]},
            ),
            figures.over("workers", "test_error", color="protocol", fixed=False),
        ],
    )


def accuracy(protocol: str, workers: int, **where: float) -> Measure:
    """Test accuracy at the best step and momentum."""
    return tuned("test_accuracy", protocol=protocol, workers=workers, **where)


RECIPE = dict(learning_rate=0.03, momentum=0.9)
"""Step and momentum as they were before both were tuned."""


def seconds(protocol: str, workers: int) -> Measure:
    """The simulated time of the run, over hardsync's time with all workers."""
    run = mean("seconds", protocol=protocol, workers=workers)
    return ratio(run, mean("seconds", protocol="hardsync", workers=30))


def less_accurate(protocol: str) -> Measure:
    """Test accuracy of thirty workers less hardsync's test accuracy."""
    return difference(accuracy(protocol, 30), accuracy("hardsync", 30))


def published(config: ConfigDict) -> list[Published]:
    """Accuracies; the cost of a gradient is assumed, so that run times follow."""
    zhang = "Zhang, Gupta, Lian, Liu (2016), arXiv:1511.05950, Section 5.1"
    setting = "a convolutional network on CIFAR-10, 30 learners of 4 examples"
    accurate = [
        Published(
            text=f"{protocol} of thirty workers ends as accurate as hardsync",
            source=zhang,
            said="about the same error, 18 %, for all n",
            setting=setting,
            measure=less_accurate(protocol),
            at_least=-0.01,
            bound_is_ours=True,
        )
        for protocol in ("1-softsync", "P-softsync")
    ]
    fast = Published(
        text="Thirty learners make an epoch 22 to 28 times faster than one",
        source=zhang,
        said="22 to 28 times",
        tried=f"The {config.overhead_seconds} s of a gradient are assumed here.",
    )
    return [*accurate, fast]


def records(config: ConfigDict) -> list[Record]:
    """Accuracies, one at the recipe's momentum; run times over hardsync of 30."""
    recipe = accuracy("P-softsync", 30, **RECIPE)
    return [
        Record("Accuracy, hardsync", accuracy("hardsync", 30), 0.9714, 0.0012),
        Record("Change, 30-softsync", less_accurate("P-softsync"), -0.03096, 0.011),
        Record("30-softsync, step 0.03, momentum 0.9", recipe, 0.9528, 0.0018),
        Record("Time of one worker over 30", seconds("hardsync", 1), 18.38, 0.018),
        Record("Time, 30-softsync", seconds("P-softsync", 30), 0.9057, 0.00039),
    ]


def answer(found: Found) -> str:
    """How much time each way saves, and what it costs of accuracy."""

    def said(protocol):
        return between(less_accurate(protocol), found, same=0.0, form="+.3f")

    recipe = accuracy("P-softsync", 30, **RECIPE)
    untuned = difference(recipe, accuracy("hardsync", 30))
    times = {own: seconds(own, 30)(found) for own in ("1-softsync", "P-softsync")}
    return (
        f"Hardsync of 30 workers is {seconds('hardsync', 1)(found):.1f} times faster"
        " than one worker, with the same updates. 30-softsync takes"
        f" {times['P-softsync']:.2f} times its time and changes test accuracy by"
        f" {said('P-softsync')} (at a step of"
        f" {RECIPE['learning_rate']} and a momentum of {RECIPE['momentum']} by"
        f" {between(untuned, found, same=0.0, form='+.3f')}); 1-softsync takes"
        f" {times['1-softsync']:.2f} times and changes it by {said('1-softsync')}."
    )
