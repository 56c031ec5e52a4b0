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
from experiments.results.measures import difference, mean, ratio, tuned


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
                make, workers=config.workers, at=detached if method == "DEF" else None
            ),
            labels=dict(method=method, share=share),
        )

    def best(metric, method, share):
        return tuned(metric, method=method, share=share)

    def at_one_step(method, share):
        """Training loss / loss of workers that send all, both at a step of 0.003."""
        own, every = (
            mean("train_loss", method=m, share=s, learning_rate=0.003)
            for m, s in ((method, share), ("all", 1.0))
        )
        return ratio(own, every)

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
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim(
                "Test error of a quarter with error feedback - test error of all",
                difference(
                    best("test_error", "error feedback", 0.25),
                    best("test_error", "all", 1.0),
                ),
                at_most=0.01,
            ),
            Claim(
                "Loss of 1/64 with error feedback / loss of all, a step of 0.003",
                at_one_step("error feedback", least),
                about=1.1,
                within=0.1,
            ),
            Claim(
                "The same without memory", at_one_step("no memory", least), at_least=5.0
            ),
            Claim(
                "Best step of 1/64: DEF over error feedback",
                ratio(
                    best("learning_rate", "DEF", least),
                    best("learning_rate", "error feedback", least),
                ),
                at_least=10.0,
            ),
            Claim(
                "Loss of 1/64, steps tuned: error feedback less DEF",
                difference(
                    best("train_loss", "error feedback", least),
                    best("train_loss", "DEF", least),
                ),
                about=0.3,
                within=0.1,
            ),
        ],
        figures=[
            figures.over("share", "train_loss", color="method", fixed=False),
            figures.over("share", "test_error", color="method", fixed=False),
            figures.best_step("share", color="method"),
        ],
        notes=(
            "A quarter of each update is enough with error feedback: 0.4 points of test"
            " error. At a step of 0.003 even 1/64 learns as fast as all of it, where"
            " nothing is learned without memory; but what was kept is old when it is"
            " sent, and error feedback bears no step above 0.03, 0.01 and 0.003 for the"
            " three shares. DEF bears 0.1 at each, as sending all does, and is best by"
            " 0.3 nats. Without memory a step of 1 makes up for most of what is lost."
        ),
    )
