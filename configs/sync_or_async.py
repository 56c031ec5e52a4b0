"""Synchronous or asynchronous: where does the winner change?

Sixteen workers are equal (a lognormal spread of 0.05). A gradient of m examples takes
0.2 + 0.05 m seconds, and a message 0.01 to 1 s: with batches of 8 and 32 per worker,
the ratio of computation to communication lies between 180 and 0.6. The time of a
message is latency, or it is the time to send a whole model. An all-reduce takes 2 log2
P latencies, or 2 (1 - 1 / P) models; a visit to the center of EA-wild takes two
messages. The result is the simulated time until an MLP on scikit-learn's digits has a
training loss of 0.3, by SGD with a warm-up. Step and momentum are searched for this
time on each cluster.

    python -m experiments.main --config=configs/sync_or_async.py --workdir=runs/sync
"""

import itertools

import jax.numpy as jnp
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
    percent,
    replicas,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training import methods

SMALL = {"message_seconds": (0.01, 1.0), "batch_size": (8,)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "message_seconds", "target", "warmup_updates")
LIMITS |= at_least(0, "overhead_seconds", "example_seconds")
LIMITS |= positive("seconds", "tolerance")


def get_config() -> ConfigDict:
    """The config: two methods, with three times of a message and two batches."""
    return ConfigDict(
        dict(
            workers=16,
            message_seconds=(0.01, 0.1, 1.0),
            batch_size=(8, 32),  # examples per gradient
            overhead_seconds=0.2,  # of a gradient
            example_seconds=0.05,  # of each example in it
            service_spread=0.05,  # of a gradient's time: standard deviation over mean
            seconds=400.0,  # simulated
            target=0.3,  # the training loss to reach, nats
            warmup_updates=20,
            seeds=10,
            tolerance=0.05,  # tolerance of the search, as a share of the time
        )
    )


LINKS = {
    "latency": lambda seconds: dj.cluster.Communication(latency_seconds=seconds),
    "models": lambda seconds: dj.cluster.Communication(
        message_bytes=seconds, bytes_per_second=1.0
    ),
}
"""{what takes the time of a message: seconds -> the link}."""


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each batch, link, time of a message and method."""

    def sgd(learning_rate, decay):
        def warm(count):
            return learning_rate * jnp.minimum(1, (count + 1) / config.warmup_updates)

        return optax.sgd(warm, 1.0 - decay)

    compared = {"all-reduce": methods.allreduce_sgd(), "EA-wild": methods.ea_wild()}

    def arm(batch, link, message, method):
        seconds = config.overhead_seconds + config.example_seconds * batch
        cluster = dj.cluster.Cluster(
            config.workers,
            dj.cluster.lognormal(seconds, config.service_spread),
            communication=LINKS[link](message),
        )
        return Arm(
            training=replicas(compared[method], cluster, sgd),
            labels=dict(
                batch_size=batch, link=link, message_seconds=message, method=method
            ),
            task=tasks.digits_mlp(batch_size=batch),
        )

    target = figures.TimeTo("train_loss", config.target)
    swept = config.batch_size, LINKS, config.message_seconds, compared
    return Experiment(
        question="Synchronous or asynchronous: where does the winner change?",
        task=tasks.digits_mlp(batch_size=config.batch_size[0]),
        arms=[arm(*values) for values in itertools.product(*swept)],
        grid={"learning_rate": Range(0.01, 3.0), "decay": Range(0.1, 1.0, off=1.0)},
        seeds=config.seeds,
        tuned_by=target,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        evaluations=50,
        answer=Effect(
            metric=target, against={"method": "all-reduce"}, size=percent(10)
        ),
        figures=[
            figures.over(
                *("message_seconds", target),
                **dict(panels="link", color="method", fixed=False),
                only={"batch_size": (min(config.batch_size),)},
                x_label="seconds of a message",
                title="Synchronous or asynchronous: which is faster?",
            ),
            figures.update_times(),
        ],
    )
