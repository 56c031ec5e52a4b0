"""How little may workers send, if what was left out is sent later?

Four workers send random blocks of their updates, a share of all (Xu and Huang, DEF,
arXiv:2004.05298): without memory of the rest, with error feedback, and detached (DEF),
where a worker takes its gradient part of the way along what it has not sent. Momentum
SGD in front of the compressor, an MLP on scikit-learn's digits.

    python -m experiments.main --config=configs/error_feedback.py \
        --workdir=runs/error_feedback
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Claim, Experiment, figures, optimizer, tasks
from experiments.measures import difference, tuned


def get_config() -> ConfigDict:
    """Three ways to send a share, and all."""
    return ConfigDict(
        dict(
            workers=4,
            share=(0.25, 0.0625, 0.015625),  # of an update that is sent
            strength=0.3,  # of DEF: how far along the error, 0 to 1
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            momentum=0.9,  # of each worker
            batch_size=32,  # examples an update, of all workers
            updates=1000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Ten arms."""

    def sgd(learning_rate):
        return optax.sgd(learning_rate, config.momentum)

    def detached(params, state):
        return dj.exchange.detached(params, state, config.strength)

    def sent(share, key):
        return dj.exchange.random_blocks(key, share)

    def arm(method, share):
        def everything(learning_rate):
            return dj.exchange.mean(sgd(learning_rate))

        def forgetful(learning_rate, key):
            """The same blocks of all workers, and the rest is lost."""

            def cut(updates, state, params=None):
                message, restore = sent(share, key)(updates, state)
                return restore(message), state + 1

            steps = optax.GradientTransformation(lambda params: jax.numpy.int32(0), cut)
            return dj.exchange.mean(optax.chain(sgd(learning_rate), steps))

        def feedback(learning_rate, key):
            return dj.exchange.error_feedback(sgd(learning_rate), sent(share, key))

        make = {"all": everything, "no memory": forgetful}.get(method, feedback)
        return Arm(
            training=optimizer(
                make,
                workers=config.workers,
                at=detached if method == "DEF" else None,
            ),
            labels=dict(method=method, share=share),
        )

    def loss(method, share):
        return tuned("train_loss", method=method, share=share)

    methods = ("no memory", "error feedback", "DEF")
    least = min(config.share)
    return Experiment(
        question="How little may workers send, if what was left out is sent later?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm("all", 1.0),
            *(arm(method, share) for method in methods for share in config.share),
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        updates=config.updates,
        claims=[
            Claim(
                "Test error of a quarter with error feedback, less that of all",
                difference(
                    tuned("test_error", method="error feedback", share=0.25),
                    tuned("test_error", method="all"),
                ),
                at_most=0.01,
            ),
            Claim(
                "Loss of 1/64 without memory, less that with error feedback",
                difference(loss("no memory", least), loss("error feedback", least)),
                about=-0.37,
                within=0.25,
            ),
            Claim(
                "Loss of 1/64 with error feedback, less that of DEF",
                difference(loss("error feedback", least), loss("DEF", least)),
                about=0.55,
                within=0.3,
            ),
        ],
        figures=[
            figures.over("share", "train_loss", color="method", fixed=False),
            figures.over("share", "test_error", color="method", fixed=False),
            figures.best_step("share", color="method"),
        ],
        notes=(
            "A quarter of each update is enough with error feedback: 0.4 points of test"
            " error. Of 1/64 error feedback is worse than forgetting, by 0.37 nats,"
            " since what it kept is old when it is sent; DEF is best, by 0.55."
        ),
    )
