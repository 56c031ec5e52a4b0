"""Does it pay to wait for few gradients at first and for more as the loss falls?

AdaSync (Dutta, Wang and Joshi, arXiv:2003.10579) chooses K anew every so many seconds,
from the loss so far, between K = 1, which is quick, and K = P, which is quiet. Eight
workers with exponential times, a quadratic whose gradients have noise, against each K
kept: the simulated time until the loss is below a target, at one step for all and at
the best step of each. (Without a noise floor, as of softmax regression on separable
digits, waiting for more gradients only costs time.)

    python -m experiments.main --config=configs/adasync.py --workdir=runs/adasync

The seconds depend on the losses, so this is a kind of training of its own, `AdaSync`.
"""

import math

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, figures, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, mean, ratio, seconds_to
from experiments.results.tables import Found
from experiments.training.adasync import AdaSync

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "interval_seconds", "gradient_seconds", "target", "noise")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """AdaSync and four K that are kept."""
    return ConfigDict(
        dict(
            workers=8,
            k=(1, 2, 4, 8),  # gradients of an update, kept
            interval_seconds=10.0,  # simulated, between two choices of K
            gradient_seconds=1.0,  # mean of exponential times
            seconds=200.0,  # simulated, at least as long where K is kept
            target=0.2,  # of the loss, which begins at directions / 2
            learning_rate=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
            directions=64,  # of the quadratic, all of curvature 1
            noise=1.0,  # standard deviation of a gradient's noise, in each direction
            seeds=5,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


CLOCK = "elapsed_seconds"  # measured: the updates choose how long they take


def experiment(config: ConfigDict) -> Experiment:
    """Five arms."""
    service = dj.cluster.exponential(config.gradient_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)

    def updates(k):
        """As many as fit, on average."""
        scheme = dj.cluster.protocols.k_sync(k)
        return round(config.seconds / scheme.update_seconds(config.workers, service))

    def kept(k):
        return dict(method="K kept", k0=k), AdaSync(cluster, k, math.inf, updates(k))

    def measured(name):
        return lambda model, task: model.state[name].astype(jnp.float32)

    grown = AdaSync(cluster, 1, config.interval_seconds, updates(4))

    target = figures.TimeTo("train_loss", config.target, CLOCK)
    one_step = {"learning_rate": (0.02,)}

    return Experiment(
        question="Does it pay to wait for few gradients at first and for more later?",
        task=tasks.quadratic((1.0,) * config.directions, noise=config.noise),
        arms=[*map(kept, config.k), (dict(method="AdaSync", k0=1), grown)],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        tuned_by=target,
        updates=1,  # each arm has its own number
        evaluations=60,
        measure={
            CLOCK: measured("seconds"),
            "gradients": measured("gradients"),
            "k": measured("k"),
        },
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.bars(target),
            figures.curves("train_loss", against=CLOCK, only=one_step),
            figures.curves("k", against=CLOCK, only=one_step, title="How does K grow?"),
        ],
    )


def until(config: ConfigDict, **where) -> Measure:
    """Simulated seconds to the target, at the best step of those in `where`."""
    return seconds_to("train_loss", config.target, along=CLOCK, **where)


def over_fastest_kept(config: ConfigDict, **where) -> Measure:
    """Seconds of AdaSync over the least of all K that are kept."""

    def fastest(found):
        each = (until(config, method="K kept", k0=k, **where) for k in config.k)
        return min(own(found) for own in each)

    return ratio(until(config, method="AdaSync", **where), fastest)


def published(config: ConfigDict) -> list[Published]:
    """AdaSync against all K kept, at one step as in the paper, and each tuned."""
    dutta = dict(
        source="Dutta, Wang, Joshi (2020), arXiv:2003.10579 (as we recall)",
        said="K is chosen so that the error bound falls fastest in time",
        setting="a network on CIFAR-10, 8 workers, a step of 0.12, K from 1 on",
        at_most=1.0,
        bound_is_ours=True,
    )
    return [
        Published(
            text="At one step for all, AdaSync is there before each K kept (our"
            " reading)",
            measure=over_fastest_kept(config, learning_rate=0.02),
            **dutta,
        ),
        Published(
            text="With the step tuned for each, AdaSync is there before each K kept"
            " (our reading)",
            measure=over_fastest_kept(config),
            **dutta,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """The times, K at the end, and the time of an update that waits for all."""

    def waiting(found):
        own = dict(method="K kept", k0=8)
        return mean(CLOCK, **own)(found) / mean("updates", **own)(found)

    one_step = dict(learning_rate=0.02)
    last = mean("k", method="AdaSync", **one_step)
    own = until(config, method="AdaSync", **one_step)
    fixed, best = over_fastest_kept(config, **one_step), over_fastest_kept(config)
    return [
        Record("K of AdaSync at the end, step of 0.02", last, 8, 0.0),
        Record("Seconds of AdaSync, step of 0.02", own, 30.6, 1.8),
        Record("Seconds of AdaSync / fastest K, step of 0.02", fixed, 0.7407, 0.044),
        Record("Seconds of AdaSync / fastest K, tuned", best, 0.7407, 0.081),
        Record("Seconds of an update that waits for all", waiting, 2.734, 0.0),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """Seconds of AdaSync over the seconds of the fastest K kept, in two ways."""

    def over(**where):
        return between(over_fastest_kept(config, **where), found)

    return (
        "The seconds until the loss is reached, of AdaSync over the fastest K"
        f" that is kept, are {over(learning_rate=0.02)} at a step of 0.02 for all, and"
        f" {over()} where each has its best step."
    )
