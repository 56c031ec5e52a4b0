"""How little may workers send, if what was left out is sent later?

Four workers send random blocks of their updates, a share of all entries (Xu and Huang,
DEF, arXiv:2004.05298): without memory of the rest, with error feedback, and detached
(DEF), where a worker computes its gradient at parameters that are moved part of the way
along its unsent updates. SGD is in front of the compressor; its step and momentum are
searched. The task is an MLP on scikit-learn's digits.

    python -m experiments.main --config=configs/error_feedback.py \
        --workdir=runs/error_feedback
"""

import jax
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
    optimizer,
    percent,
    points,
)
from experiments.configs import at_least, positive
from experiments.tasks import digits_mlp

LIMITS = at_least(1, "workers")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: three ways to send a share of the updates, and all of them."""
    return ConfigDict(
        dict(
            workers=4,
            share=(0.25, 0.0625, 0.015625),  # of an update that a worker sends
            strength=0.3,  # of DEF: how far parameters move along the error, 0 to 1
            batch_size=32,  # examples per update, of all workers
            updates=1000,
            seeds=5,
            tolerance=0.3,  # tolerance of the search, of the logarithm of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and share."""

    def detached(params, state):
        return dj.exchange.detached(params, state, config.strength)

    def sent(share, key):
        return dj.exchange.random_blocks(key, share)

    def arm(method, share):
        def everything(learning_rate, decay):  # decay = 1 - momentum
            return dj.exchange.mean(optax.sgd(learning_rate, 1.0 - decay))

        def forgetful(learning_rate, decay, key):
            """All workers send the same blocks; the rest is lost."""

            def cut(updates, state, params=None):
                message, restore = sent(share, key)(updates, state)
                return restore(message), state + 1

            steps = optax.GradientTransformation(lambda params: jax.numpy.int32(0), cut)
            sgd = optax.sgd(learning_rate, 1.0 - decay)
            return dj.exchange.mean(optax.chain(sgd, steps))

        def feedback(learning_rate, decay, key):
            sgd = optax.sgd(learning_rate, 1.0 - decay)
            return dj.exchange.error_feedback(sgd, sent(share, key))

        make = {"all": everything, "no memory": forgetful}.get(method, feedback)
        at = detached if method == "DEF" else None
        training = optimizer(make, workers=config.workers, at=at)
        return Arm(training=training, labels=dict(method=method, share=share))

    methods = ("no memory", "error feedback", "DEF")
    return Experiment(
        question="How little may workers send, if what was left out is sent later?",
        task=digits_mlp(batch_size=config.batch_size),
        arms=[
            arm("all", 1.0),
            *(arm(method, share) for method in methods for share in config.share),
        ],
        grid={
            "learning_rate": Range(0.001, 10.0),
            "decay": Range(0.05, 1.0, off=1.0),
        },
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=[
            Effect(
                metric="test_error", against=dict(method="all", share=1), size=points(1)
            ),
            Effect(
                metric="train_loss",
                against={"method": "error feedback"},
                size=percent(10),
                where={"method": methods},
            ),
        ],
        figures=[
            figures.over("share", "train_loss", color="method", fixed=False),
            figures.over("share", "test_error", color="method", fixed=False),
            figures.best_step("share", "learning_rate", color="method"),
        ],
    )
