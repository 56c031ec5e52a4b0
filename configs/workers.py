"""How many asynchronous workers are fastest at one step size, and how many too many?

A quadratic of curvature 1 without noise, plain SGD that updates at each gradient, the
step 0.05 whatever the number of workers. A gradient takes 1 s in the mean, with a
coefficient of variation of 1/4, 0.71 and 1. The rate at which the error dies out, from
the slope of each run, is drawn beside `stability.workers_decay_rate`, which follows
from the delay equation of Yu, Chen and Poor (arXiv:2406.11159). `:spectrum` adds a
curvature of 1/5, and leaves out the memoryless times, which have no limit.

    python -m experiments.main --config=configs/workers.py --workdir=runs/workers
    python -m experiments.main --config=configs/workers.py:spectrum --workdir=runs/two
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, Simulation, along, figures
from experiments.configs import at_least, positive
from experiments.results import analysis
from experiments.results.estimates import Measure
from experiments.results.measures import between, mean, ratio, seconds_to
from experiments.results.tables import Found
from experiments.tasks import quadratic

LAWS = {
    "gamma 16": dj.cluster.gamma(1.0, 16),
    "gamma 2": dj.cluster.gamma(1.0, 2),
    "exponential": dj.cluster.exponential(1.0),
}


LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "least_seconds", "target")
LIMITS |= positive("learning_rate")


def get_config(question: str = "curvature") -> ConfigDict:
    """An arm for each law and number of workers, at least 60 s and 640 gradients."""
    spectrum = question == "spectrum"
    return ConfigDict(
        dict(
            law=("gamma 16", "gamma 2") if spectrum else tuple(LAWS),
            workers=(1, 2, 4, 8, 16, 24, 32, 64, 96),
            eigenvalues=(0.2, 1.0) if spectrum else (1.0,),  # curvatures
            learning_rate=0.05,
            least_seconds=60.0,  # simulated
            least_gradients=640,
            target=1e-6 if spectrum else 1e-12,  # of the loss
            seeds=8,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each law and number of workers."""

    def arm(law, workers):
        cluster = dj.cluster.Cluster(workers, LAWS[law])
        simulated = Simulation(cluster, dj.cluster.protocols.k_async(1))
        own = dict(labels=dict(law=law, workers=workers))
        own["seconds"] = max(config.least_seconds, config.least_gradients / workers)
        return Arm(training=along(simulated, optax.sgd(config.learning_rate)), **own)

    def rate(law, workers):
        """The rate of the slowest direction, 1 / seconds."""
        steps = config.learning_rate * np.asarray(config.eigenvalues)
        return dj.stability.workers_decay_rate(steps, int(workers), LAWS[law]).min()

    return Experiment(
        question="How many asynchronous workers are fastest, and how many too many?",
        task=quadratic(config.eigenvalues),
        arms=[arm(law, workers) for law in config.law for workers in config.workers],
        seeds=config.seeds,
        seconds=config.least_seconds,
        evaluations=60,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "workers",
                figures.DecayRate(),
                theory=rate,
                title="How fast does the error die out?",
                name="decay_rate",
            )
        ],
    )


def until(config: ConfigDict, law: str, workers: int) -> Measure:
    """Simulated seconds until the target; inf where some seed never gets there."""
    return seconds_to("train_loss", config.target, law=law, workers=workers)


def published(config: ConfigDict) -> list[Published]:
    """The paper's findings, on regular workers."""
    single, most = len(config.eigenvalues) == 1, max(config.workers)
    few = 8 if single else 24
    yu = dict(
        source="Yu, Chen, Poor (2024), arXiv:2406.11159",
        setting="synthetic models and MNIST",
        bound_is_ours=True,
    )

    def over(these, others):
        return ratio(*(until(config, "gamma 16", count) for count in (these, others)))

    return [
        Published(
            text="A small staleness does not slow training: with regular times (gamma"
            " 16) four workers need a quarter of the seconds of one, or less",
            said="small staleness does not necessarily slow convergence",
            measure=over(1, 4),
            at_least=4.0,
            **yu,
        ),
        Published(
            text="More workers do not always help: with regular times 32 are slower"
            f" than {few}",
            said="more activated workers do not always help",
            measure=over(32, few),
            at_least=1.0,
            tried="With regular times no seed gets there with 32, and infinity has no"
            " interval." * single,
            **yu,
        ),
        Published(
            text=f"A large staleness diverges: {most} workers with regular times",
            said="a large staleness diverges",
            measure=mean("ended_higher", law="gamma 16", workers=most),
            at_least=0.9,
            **yu,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Seconds until the target, who gets there, and a mean staleness."""

    def arrived(found):
        curves = analysis.where(found.curves, law="gamma 16", workers=32)
        times = analysis.time_to(curves, "train_loss", config.target)
        return np.isfinite(times).mean()

    age = mean("staleness_mean", law="gamma 16", workers=8)
    single = len(config.eigenvalues) == 1
    seconds = {
        "gamma 16": {1: (266.5, 1.4), 8: (15.48, 0.051), 16: (25.04, 0.52)},
        "gamma 2": {8: (19.41, 0.23), 32: (40.19, 0.91)},
        "exponential": {8: (21.38, 0.8), 96: (33.8, 1.5)},
    }
    both = {
        "gamma 16": {1: (576.3, 2.9), 8: (66.87, 0.35), 24: (21.3, 0.11)},
        "gamma 2": {24: (17.72, 0.27), 32: (18.78, 0.76)},
    }
    return [
        *(
            Record(f"Seconds, {law}, P = {count}", until(config, law, count), *own)
            for law, times in (seconds if single else both).items()
            for count, own in times.items()
        ),
        Record("Share of seeds that get there, P = 32", arrived, 1.0 - single, 0.0),
        Record("Mean staleness, P = 8", age, 6.954, 0.0011),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """The fastest number of each law, and the largest that gets there."""

    def of(law):
        times = {count: until(config, law, count)(found) for count in config.workers}
        there = [count for count, seconds in times.items() if np.isfinite(seconds)]
        if not there:
            return f"{law}: none in all runs"
        best, least = min(there, key=times.get), min(there)
        gain = ratio(until(config, law, least), until(config, law, best))
        return (
            f"{law}: {best} workers, {between(gain, found, form='.3g')} times as fast"
            f" as {least}; up to {max(there)} workers all runs get there"
        )

    return (
        f"At a step of {config.learning_rate:g} these numbers of workers get to a loss"
        f" of {config.target:g} first. {'. '.join(map(of, config.law))}."
    )
