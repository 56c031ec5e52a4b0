"""Does it pay to wait for few gradients at first and for more as the loss falls?

AdaSync (Dutta, Wang and Joshi, arXiv:2003.10579) waits for K gradients in an update,
and chooses K again after each interval, from the loss: K = 1 is fast, and K = P has the
least noise. Eight workers with exponential times minimize a quadratic whose gradients
have noise. The simulated time until the loss is below a target is compared with each
fixed K, at one step for all and at the best step of each. (Without a noise floor, as in
softmax regression on separable digits, waiting for more gradients only costs time.)

    python -m experiments.main --config=configs/adasync.py --workdir=runs/adasync

The seconds depend on the losses, so the config has a special training, `AdaSync`.
"""

import math

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, figures, percent, tasks
from experiments.configs import at_least, positive
from experiments.training.adasync import AdaSync

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "interval_seconds", "gradient_seconds", "target", "noise")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """The config: AdaSync and four fixed K."""
    return ConfigDict(
        dict(
            workers=8,
            k=(1, 2, 4, 8),  # gradients per update, where K is fixed
            interval_seconds=10.0,  # simulated, between two choices of K
            gradient_seconds=1.0,  # mean of exponential times
            seconds=200.0,  # simulated, as the mean of a fixed K
            target=0.2,  # the loss to reach; it begins at directions / 2
            learning_rate=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
            directions=64,  # of the quadratic, all of curvature 1
            noise=1.0,  # standard deviation of a gradient's noise, in each direction
            seeds=5,
            tuning_seeds=3,  # seeds that choose the step size; not reported
        )
    )


CLOCK = "elapsed_seconds"  # measured, since the time of an update depends on losses


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: five arms."""
    service = dj.cluster.exponential(config.gradient_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)

    def updates(k):
        """The mean number of updates that fit into the time."""
        scheme = dj.cluster.protocols.k_sync(k)
        return round(config.seconds / scheme.update_seconds(config.workers, service))

    def kept(k):
        return dict(method="K kept", k0=k), AdaSync(cluster, k, math.inf, updates(k))

    def measured(name):
        return lambda model, task: model.state[name].astype(jnp.float32)

    grown = AdaSync(cluster, 1, config.interval_seconds, updates(4))

    target = figures.TimeTo("train_loss", config.target, CLOCK)
    one_step = {"learning_rate": (0.02,)}

    def against_adasync(**options):
        adasync = {"method": "AdaSync", "k0": 1}
        return Effect(metric=target, against=adasync, size=percent(10), **options)

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
        metrics={
            CLOCK: measured("seconds"),
            "gradients": measured("gradients"),
            "k": measured("k"),
        },
        answer=[
            against_adasync(
                where=one_step, name="seconds to the loss at a step of 0.02"
            ),
            against_adasync(name="seconds to the loss"),
        ],
        figures=[
            figures.bars(target),
            figures.curves("train_loss", against=CLOCK, only=one_step),
            figures.curves("k", against=CLOCK, only=one_step, title="How does K grow?"),
        ],
    )
