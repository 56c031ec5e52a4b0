"""Does a period that follows the models' disagreement beat a fixed period?

Local SGD averages its models every H steps. In the first quarter of a run, adaptive
periodic averaging (Jiang and Agrawal, arXiv:2007.06134) measures the distance between
the models, over the step size. Later it lengthens H where the models are closer than
that, and shortens H where they are further apart. Eight workers train an MLP on
scikit-learn's digits, with steps that fall as a cosine; the first step of each method
is searched. The answer compares the training loss and the number of averages.

    python -m experiments.main --config=configs/adaptive_period.py \
        --workdir=runs/adaptive_period
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
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
from experiments.training.methods import Method

LIMITS = at_least(1, "workers", "period")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: the adaptive period, and five fixed periods."""
    return ConfigDict(
        dict(
            workers=8,
            period=(1, 2, 4, 8, 16),  # fixed numbers of steps between two averages
            first_period=4,  # of the adaptive period
            batch_size=4,  # examples per gradient
            updates=800,  # steps of each worker
            seeds=5,
            tolerance=0.02,  # tolerance of the search, as a share of the loss
        )
    )


class Counted(NamedTuple):
    """A state of local SGD, and the numbers that are measured of it."""

    state: Any
    averages: jax.Array  # so far
    period_now: jax.Array


def counted(tx: Any, period: Callable[[Any], tuple[Any, Any]]) -> Any:
    """`tx` that counts; `period`: state -> the period, whether models were averaged."""

    def init(params):
        state = tx.init(params)
        return Counted(state, jnp.zeros(()), jnp.float32(period(state)[0]))

    def update(grads, state, params=None, **extra):
        moves, inner = tx.update(grads, state.state, params, **extra)
        now, averaged = period(inner)
        return moves, Counted(inner, state.averages + averaged, jnp.float32(now))

    return optax.GradientTransformationExtraArgs(init, update)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for fixed periods, and one for the adaptive period."""
    link = dj.cluster.Communication(latency_seconds=0.0)
    cluster = dj.cluster.Cluster(
        config.workers, dj.cluster.constant(1.0), communication=link
    )
    # the whole method is the workers' optimizer, so that its period can be traced
    as_made = Method(lambda inner, now, workers: inner, methods.local_sgd(1).timetable)

    def cosine(learning_rate):
        return optax.cosine_decay_schedule(learning_rate, config.updates)

    def kept(learning_rate, period):
        tx = dj.averaging.local_sgd(optax.sgd(cosine(learning_rate)), period=period)
        return counted(tx, lambda state: (period, state.step % period == 0))

    def adaptive(learning_rate):
        tx = dj.averaging.adaptive_period(
            optax.sgd(cosine(learning_rate)),
            cosine(learning_rate),
            sampling_steps=config.updates // 4,
            period=config.first_period,
        )
        return counted(tx, lambda s: (s.memory.period, s.memory.local_steps == 0))

    def arm(make):
        trained = replicas(as_made, cluster, make, seen=lambda state: state)
        return dict(method=make.__name__), trained

    def against_adaptive(metric, name):
        adaptive = {"method": "adaptive"}
        return Effect(metric=metric, against=adaptive, size=percent(10), name=name)

    return Experiment(
        question="Does a period that follows disagreement beat a fixed period?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(kept), arm(adaptive)],
        grid={"learning_rate": Range(0.1, 3.0), "period": config.period},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        metrics={
            "averages": lambda model, task: model.state.averages,
            "period_now": lambda model, task: model.state.period_now,
        },
        answer=[
            against_adaptive("train_loss", name="training loss of periods kept"),
            against_adaptive("averages", name="averages of periods kept"),
        ],
        figures=[
            figures.over("period", "train_loss", color="method", fixed=False),
            figures.curves(
                "train_loss", against="averages", title="What do averages buy?"
            ),
            figures.curves("period_now", title="How does the period change?"),
        ],
    )
