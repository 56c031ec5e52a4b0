"""What do rare and small messages save on the way to a training loss?

Two islands average gradients at each step, or train by DiLoCo with an exchange every 20
steps. Its messages have 32, 8 or 4 bits per entry, or an eighth of the entries, which
takes as many bytes as 4 bits. An entry that a message leaves out is sent later. A
control is one island alone. All numbers are searched: the step of Adam, and step and
momentum of the outer optimizer.

A training loss is reached at two costs: the bytes that an island sends for each
parameter, and the time on three links, in local steps. On a link an exchange in float32
takes as long as 1, 10 or 100 local steps, and islands wait for it. Two islands that
swap their rounded changes send no more entries than a sum does.

    python -m experiments.main --config=configs/bytes_to_target.py \
        --workdir=runs/bytes_to_target
"""

import functools

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, figures, replicas, tasks
from experiments.configs import at_least, positive
from experiments.results.effects import percent
from experiments.results.metrics import Computed
from experiments.training import methods

SMALL = {"updates": 40}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "period") | positive("target", "exchange", "tolerance")

BITS = {"float32": 32, "8 bits": 8, "4 bits": 4, "1 of 8": 4}
"""Bits of a message for each parameter."""

GRADIENTS, ALONE = "gradients", "one island"


def get_config() -> ConfigDict:
    """The config: two islands, and three links between them."""
    return ConfigDict(
        dict(
            period=20,  # steps between two exchanges
            exchange=(1.0, 10.0, 100.0),  # time in float32, in local steps: three links
            target=0.3,  # the training loss to reach, nats
            updates=200,  # of each island
            batch_size=8,  # examples per gradient of an island
            seeds=16,
            tolerance=0.05,  # of the search, as a share of the updates
        )
    )


def models_sent(config: ConfigDict, method: str) -> float:
    """The mean message of an island per step, as a share of the model in float32."""
    if method in (GRADIENTS, ALONE):
        return float(method == GRADIENTS)
    return BITS[method] / 32 / config.period


def bytes_to(config: ConfigDict) -> figures.TimeTo:
    """A metric: the bytes that an island sends for each parameter until the target."""
    sent = functools.partial(models_sent, config)
    cost = Computed("bytes", lambda method: 4.0 * sent(method))
    return figures.TimeTo("train_loss", config.target, "update", cost=cost)


def time_to(config: ConfigDict, exchange: float) -> figures.TimeTo:
    """A metric: the time until the target over a link, in local steps."""
    sent = functools.partial(models_sent, config)
    name = f"time_at_{exchange:g}"
    cost = Computed(name, lambda method: 1.0 + exchange * sent(method))
    return figures.TimeTo("train_loss", config.target, "update", cost=cost)


def adam(learning_rate):
    """The optimizer of each island."""
    return optax.adam(learning_rate)


def nesterov(outer_step, outer_decay):
    """The outer optimizer; `outer_step` is the sum of steps that a change causes."""
    return optax.sgd(outer_step * outer_decay, 1.0 - outer_decay, nesterov=True)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: gradients, four messages of DiLoCo, and one island."""
    compressors = {
        "8 bits": dj.exchange.quantized(8),
        "4 bits": dj.exchange.quantized(4),
        "1 of 8": dj.exchange.random_blocks(jax.random.key(0), 1 / 8),
    }
    outer = {"outer_step": Range(1.0, 10.0), "outer_decay": Range(0.05, 1.0, off=1.0)}

    def arm(name, method, islands=2, grid=outer, near=None):
        cluster = dj.cluster.Cluster(islands, dj.cluster.constant(1.0))
        training, labels = replicas(method, cluster, adam), {"method": name}
        near = near and {"method": near}  # an arm whose optimum may be close
        return Arm(training=training, labels=labels, grid=grid, contains=near)

    def diloco(name):
        return methods.outer(nesterov, config.period, compress=compressors.get(name))

    def cost(metric, base="float32", but=(ALONE,)):
        named = [GRADIENTS, *BITS, ALONE]
        where = {"method": tuple(name for name in named if name not in but)}
        against = {"method": base}
        return Effect(metric=metric, against=against, size=percent(10), where=where)

    times = [time_to(config, each) for each in config.exchange]
    return Experiment(
        question="What do rare and small messages save on the way to a training loss?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm(GRADIENTS, methods.allreduce_sgd(), grid={}),
            arm("float32", diloco("float32")),
            *(arm(name, diloco(name), near="float32") for name in compressors),
            arm(ALONE, diloco("float32"), islands=1),
        ],
        grid={"learning_rate": Range(1e-3, 0.1)},
        seeds=config.seeds,
        tuned_by=figures.TimeTo("train_loss", config.target, along="update"),
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        evaluate_every=4,  # a model of DiLoCo changes with its exchanges alone
        answer=[cost(bytes_to(config)), *(cost(time, but=()) for time in times)],
        figures=[
            figures.bars(metric, color="method")
            for metric in (bytes_to(config), *times)
        ],
    )
