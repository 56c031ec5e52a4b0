"""Does it pay to wait for few gradients at first and for more as the loss falls?

AdaSync (Dutta, Wang and Joshi, arXiv:2003.10579) waits for K gradients in an update,
and chooses K again after each interval, from the loss: K = 1 is fast, and K = P has the
least noise. Eight workers with exponential times minimize a quadratic whose gradients
have noise. The simulated time until the loss is below a target is compared with each
fixed K, at one step for all and at the best step of each, which is searched. (Without a
noise floor, as in softmax regression on separable digits, waiting for more gradients
only costs time.)

    python -m experiments.main --config=configs/adasync.py --workdir=runs/adasync

The seconds depend on the losses, so the config has a special training, `AdaSync`.
"""

import math

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    percent,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training.adasync import AdaSync

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "interval_seconds", "gradient_seconds", "target", "noise")
LIMITS |= positive("seconds", "step", "tolerance")


def get_config() -> ConfigDict:
    """The config: AdaSync and four fixed K."""
    return ConfigDict(
        dict(
            workers=8,
            k=(1, 2, 3, 4, 5, 6, 7, 8),  # gradients per update, where K is fixed
            interval_seconds=10.0,  # simulated, between two choices of K
            gradient_seconds=1.0,  # mean of exponential times
            seconds=200.0,  # simulated, as the mean of a fixed K
            target=0.2,  # the loss to reach; it begins at directions / 2
            step=0.02,  # of all, in one of the comparisons
            directions=64,  # of the quadratic, all of curvature 1
            noise=1.0,  # standard deviation of a gradient's noise, in each direction
            seeds=5,
            tolerance=0.02,  # tolerance of the search, as a share of the time
        )
    )


ONE, SEARCHED = "one for all", "searched"
CLOCK = "elapsed_seconds"  # measured, since the time of an update depends on losses


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: AdaSync and each fixed K, at one step and at the best steps."""
    service = dj.cluster.exponential(config.gradient_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)

    def updates(k):
        """The mean number of updates that fit into the time."""
        scheme = dj.cluster.protocols.k_sync(k)
        return round(config.seconds / scheme.update_seconds(config.workers, service))

    def arms(steps, learning_rate):
        """AdaSync and each fixed K, with these steps."""

        def arm(method, k, interval, updates):
            labels = dict(method=method, k0=k, steps=steps)
            training = AdaSync(cluster, k, interval, updates)
            return Arm(training=training, labels=labels, grid=learning_rate)

        kept = [arm("K kept", k, math.inf, updates(k)) for k in config.k]
        return [*kept, arm("AdaSync", 1, config.interval_seconds, updates(4))]

    def measured(name):
        return lambda model, task: model.state[name].astype(jnp.float32)

    target = figures.TimeTo("train_loss", config.target, CLOCK)
    one_step = {"steps": ONE, "learning_rate": (config.step,)}

    def against_adasync(**options):
        adasync = {"method": "AdaSync", "k0": 1}
        return Effect(metric=target, against=adasync, size=percent(10), **options)

    return Experiment(
        question="Does it pay to wait for few gradients at first and for more later?",
        task=tasks.quadratic((1.0,) * config.directions, noise=config.noise),
        arms=[
            *arms(ONE, {"learning_rate": (config.step,)}),
            *arms(SEARCHED, {"learning_rate": Range(0.005, 0.2)}),
        ],
        seeds=config.seeds,
        tuned_by=target,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=1,  # each arm has its own number
        evaluations=60,
        metrics={
            CLOCK: measured("seconds"),
            "gradients": measured("gradients"),
            "k": measured("k"),
        },
        answer=[
            against_adasync(
                where=one_step,
                name=f"seconds to the loss at a step of {config.step:g}",
            ),
            against_adasync(where={"steps": SEARCHED}, name="seconds to the loss"),
        ],
        figures=[
            figures.bars(target, only={"steps": SEARCHED}),
            figures.curves("train_loss", against=CLOCK, only=one_step),
            figures.curves("k", against=CLOCK, only=one_step, title="How does K grow?"),
        ],
    )
