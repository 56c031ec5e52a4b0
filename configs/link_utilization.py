"""How much of the time do islands compute, if their link is slow?

Four GPUs train a model of 30.8 million parameters over Ethernet: they average their
models after H steps and wait. A study measured the share of the time in which they
compute (https://github.com/Adnan082/diloco-measured). Here the time follows from the
bytes of the model, the rate of the link, and the seconds of a step on a fast link. The
workers train on a quadratic, because the model does not matter for the time.

    python -m experiments.main --config=configs/link_utilization.py \
        --workdir=runs/link_utilization
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, figures, percent, replicas, tasks
from experiments.configs import at_least, positive
from experiments.results.metrics import Computed
from experiments.training import methods

LIMITS = at_least(1, "workers", "period")
LIMITS |= positive("megabits", "message_bytes", "step_seconds", "learning_rate")


def get_config() -> ConfigDict:
    """The config: the study's four rates and four periods."""
    return ConfigDict(
        dict(
            workers=4,
            period=(1, 8, 32, 128),  # steps between two exchanges
            updates=(90, 140, 140, 180),  # steps that the study counts at each period
            megabits=(50, 200, 1000, 5000),  # per second, over the link
            message_bytes=4 * 30_846_720.0,  # of a model in float32
            step_seconds=0.0248,  # the study's mean on a link without a limit
            learning_rate=0.01,
            seeds=2,
        )
    )


def utilization(config: ConfigDict) -> Computed:
    """A metric: the share of the time in which workers compute."""
    return Computed(
        "utilization", lambda updates, seconds: updates * config.step_seconds / seconds
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: DiLoCo at each period over each link."""
    counts = len(config.period), len(config.updates)
    if counts[0] != counts[1]:
        raise ValueError(
            "config.updates must hold one number for each value of config.period, got"
            f" {counts[1]} numbers for {counts[0]} values."
        )

    def arm(period, updates, megabits):
        link = dj.cluster.Communication(
            message_bytes=config.message_bytes, bytes_per_second=1e6 / 8 * megabits
        )
        service = dj.cluster.constant(config.step_seconds)
        cluster = dj.cluster.Cluster(config.workers, service, communication=link)
        method = methods.outer(lambda learning_rate: optax.sgd(0.7), period)
        labels = dict(period=period, megabits=megabits)
        training = replicas(method, cluster, optax.sgd)
        return Arm(training=training, labels=labels, updates=updates)

    share, slowest = utilization(config), min(config.megabits)
    return Experiment(
        question="How much of the time do islands compute, if their link is slow?",
        task=tasks.quadratic(),
        arms=[
            arm(period, updates, megabits)
            for period, updates in zip(config.period, config.updates, strict=True)
            for megabits in config.megabits
        ],
        grid={"learning_rate": (config.learning_rate,)},
        seeds=config.seeds,
        updates=max(config.updates),
        evaluations=1,
        answer=Effect(
            metric=share,
            against={"period": min(config.period)},
            size=percent(10),
            where={"megabits": slowest},
            name=f"share of the time, {slowest} Mbit/s",
        ),
        figures=[figures.over("megabits", share, color="period")],
    )
