"""Synchronous or asynchronous: where does the winner change?

Sixteen workers, gradients of 1 s (lognormal, a spread of 0.3), messages of 0.01 to 1 s:
computation over communication from 100 down to 1. An all-reduce is 2 log2 P messages
one after the other, a visit to the center of EA-wild is two. Batches of 2, 8 and 32 on
each worker. The simulated time until an MLP on scikit-learn's digits has a training
loss of 0.3, by SGD with a warm-up, its step and momentum tuned for each cluster.

    python -m experiments.main --config=configs/sync_or_async.py --workdir=runs/sync
"""

import itertools

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, replicas, tasks
from experiments.configs import at_least, below_one, positive
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import ratio, seconds_to
from experiments.results.tables import Found
from experiments.training import methods

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "latency_seconds", "target", "warmup_updates")
LIMITS |= positive("seconds", "learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """Two methods, nine clusters and batches."""
    return ConfigDict(
        dict(
            workers=16,
            latency_seconds=(0.01, 0.1, 1.0),  # of a message
            batch_size=(2, 8, 32),  # examples a gradient
            service_spread=0.3,  # of a gradient's time of 1 s, standard deviation
            seconds=400.0,  # simulated
            target=0.3,  # of the training loss, nats
            warmup_updates=20,
            learning_rate=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            momentum=(0.0, 0.9),
            seeds=5,
            tuning_seeds=3,  # that choose step and momentum, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """18 arms."""

    def sgd(learning_rate, momentum):
        def warm(count):
            return learning_rate * jnp.minimum(1, (count + 1) / config.warmup_updates)

        return optax.sgd(warm, momentum)

    compared = {"all-reduce": methods.allreduce_sgd(), "EA-wild": methods.ea_wild()}

    def arm(batch, latency, method):
        cluster = dj.cluster.Cluster(
            config.workers,
            dj.cluster.lognormal(1.0, config.service_spread),
            communication=dj.cluster.Communication(latency_seconds=latency),
        )
        return Arm(
            training=replicas(compared[method], cluster, sgd),
            labels=dict(batch_size=batch, latency_seconds=latency, method=method),
            task=tasks.digits_mlp(batch_size=batch),
        )

    target = figures.TimeTo("train_loss", config.target)
    swept = config.batch_size, config.latency_seconds, compared
    return Experiment(
        question="Synchronous or asynchronous: where does the winner change?",
        task=tasks.digits_mlp(batch_size=config.batch_size[0]),
        arms=[arm(*own) for own in itertools.product(*swept)],
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuned_by=target,
        tuning_seeds=config.tuning_seeds,
        seconds=config.seconds,
        evaluations=50,
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                *("latency_seconds", target),
                **dict(panels="batch_size", color="method", fixed=False),
                x_label="time, message / gradient",
                title="Synchronous or asynchronous: which is faster?",
            ),
            figures.update_times(),
        ],
    )


def times(config: ConfigDict, batch: int, latency: float) -> Measure:
    """Seconds of EA-wild as a multiple of the all-reduce's seconds."""

    def of(method):
        where = dict(method=method, batch_size=batch, latency_seconds=latency)
        return seconds_to("train_loss", config.target, **where)

    return ratio(of("EA-wild"), of("all-reduce"))


def published(config: ConfigDict) -> list[Published]:
    """Who wins at both ends, with large batches as in the paper, and with small."""
    few, many = min(config.batch_size), max(config.batch_size)
    quick, slow = min(config.latency_seconds), max(config.latency_seconds)

    def favored(text, solvers, measure, **more):
        return Published(
            text=text,
            source="Wongpanich, You, Demmel (2020), HPC Asia",
            said=f"this ratio of computation to communication favors {solvers} solvers",
            setting="ResNet-50 and others on ImageNet, up to 217,600 cores",
            measure=measure,
            **more,
        )

    tried = (
        "Batches of 2 and 8, with which it holds. With 32 few steps are needed, and an"
        " all-reduce waits at each for the longest of sixteen times."
    )
    text = "quick messages: the all-reduce is there first"
    sync = dict(solvers="synchronous", at_least=1.0)
    last = "Large batches, slow messages: EA-wild is there first"
    large, small, slowed = (
        times(config, *own) for own in ((many, quick), (few, quick), (many, slow))
    )
    return [
        favored(f"Large batches, {text}", measure=large, tried=tried, **sync),
        favored(f"Small batches, {text}", measure=small, **sync),
        favored(last, "asynchronous", slowed, at_most=1.0),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Times of EA-wild over the all-reduce's, and one time in seconds."""
    own = dict(method="all-reduce", batch_size=8, latency_seconds=0.01)
    seconds = seconds_to("train_loss", config.target, **own)
    text = "Seconds of EA-wild / all-reduce, batch"
    return [
        Record("Seconds of the all-reduce, batch 8, 0.01 s", seconds, 44.71, 1.7),
        Record(f"{text} 2, messages of 0.01 s", times(config, 2, 0.01), 1.804, 0.053),
        Record(f"{text} 8, messages of 0.01 s", times(config, 8, 0.01), 1.226, 0.043),
        Record(f"{text} 8, messages of 1 s", times(config, 8, 1.0), 0.6537, 0.0096),
        Record(f"{text} 32, messages of 1 s", times(config, 32, 1.0), 0.2934, 0.037),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """The winner of each cluster and batch, where the seeds decide."""
    messages = config.latency_seconds

    def winner(batch, latency):
        low, high = estimate(times(config, batch, latency), found).interval()
        if high < 1:
            return "EA-wild"
        return "the all-reduce" if low > 1 else "neither"

    rows = (
        f"with a batch of {batch} {', '.join(winner(batch, own) for own in messages)}"
        for batch in config.batch_size
    )
    return (
        f"With messages of {', '.join(f'{own:g}' for own in messages)} s, for gradients"
        f" of 1 s, the faster one at 95 % confidence is in this order:"
        f' {"; ".join(rows)}. "Neither": they differ as the seeds do, or do not arrive.'
    )
