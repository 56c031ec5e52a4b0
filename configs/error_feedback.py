"""How little may workers send, if what was left out is sent later?

Four workers send random blocks of their updates, a share of all (Xu and Huang, DEF,
arXiv:2004.05298): without memory of the rest, with error feedback, and detached (DEF),
where a worker takes its gradient part of the way along what it has not sent. SGD is
in front of the compressor, step and momentum tuned. An MLP on scikit-learn's digits.

    python -m experiments.main --config=configs/error_feedback.py \
        --workdir=runs/error_feedback
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, optimizer, tasks
from experiments.configs import at_least, below_one, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers")
LIMITS |= positive("learning_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """Three ways to send a share, and all."""
    return ConfigDict(
        dict(
            workers=4,
            share=(0.25, 0.0625, 0.015625),  # of an update that is sent
            strength=0.3,  # of DEF: how far along the error, 0 to 1
            learning_rate=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            momentum=(0.0, 0.9),  # of each worker
            batch_size=32,  # examples an update, of all workers
            updates=1000,
            seeds=5,
            tuning_seeds=3,  # that choose step and momentum, and are not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """Ten arms."""

    def detached(params, state):
        return dj.exchange.detached(params, state, config.strength)

    def sent(share, key):
        return dj.exchange.random_blocks(key, share)

    def arm(method, share):
        def everything(learning_rate, momentum):
            return dj.exchange.mean(optax.sgd(learning_rate, momentum))

        def forgetful(learning_rate, momentum, key):
            """The same blocks of all workers, and the rest is lost."""

            def cut(updates, state, params=None):
                message, restore = sent(share, key)(updates, state)
                return restore(message), state + 1

            steps = optax.GradientTransformation(lambda params: jax.numpy.int32(0), cut)
            sgd = optax.sgd(learning_rate, momentum)
            return dj.exchange.mean(optax.chain(sgd, steps))

        def feedback(learning_rate, momentum, key):
            sgd = optax.sgd(learning_rate, momentum)
            return dj.exchange.error_feedback(sgd, sent(share, key))

        make = {"all": everything, "no memory": forgetful}.get(method, feedback)
        at = detached if method == "DEF" else None
        training = optimizer(make, workers=config.workers, at=at)
        return Arm(training=training, labels=dict(method=method, share=share))

    methods = ("no memory", "error feedback", "DEF")
    return Experiment(
        question="How little may workers send, if what was left out is sent later?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm("all", 1.0),
            *(arm(method, share) for method in methods for share in config.share),
        ],
        grid={"learning_rate": config.learning_rate, "momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("share", "train_loss", color="method", fixed=False),
            figures.over("share", "test_error", color="method", fixed=False),
            figures.best_step("share", "learning_rate", color="method"),
        ],
    )


LEAST = 1 / 64


def best(metric: str, method: str, share: float) -> Measure:
    """A metric at the best step and momentum."""
    return tuned(metric, method=method, share=share)


def over_all(method: str) -> Measure:
    """Loss of 1/64 over the loss of all, both with momentum 0.9 at a step of 0.003."""
    at = dict(learning_rate=0.003, momentum=0.9)
    arms = (method, LEAST), ("all", 1.0)
    return ratio(*(mean("train_loss", method=m, share=s, **at) for m, s in arms))


def error_more(share: float) -> Measure:
    """Test error of a share with error feedback less the error when all is sent."""
    own, all_of_it = ("error feedback", share), ("all", 1.0)
    return difference(*(best("test_error", *one) for one in (own, all_of_it)))


def over_feedback() -> Measure:
    """Loss of 1/64 with DEF over the loss with error feedback."""
    methods = ("DEF", "error feedback")
    return ratio(*(best("train_loss", method, LEAST) for method in methods))


def published(config: ConfigDict) -> list[Published]:
    """DEF against error feedback."""
    del config
    return [
        Published(
            text="Of 1/64, DEF reaches a smaller training loss than error feedback (our"
            " reading)",
            source="Xu and Huang (2020), arXiv:2004.05298",
            said="DEF trades the variance of gradients against their second moment",
            measure=over_feedback(),
            at_most=1.0,
            bound_is_ours=True,
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses at one step, and what is lost with the step tuned."""
    del config
    quarter = best("test_error", "error feedback", 0.25)
    feedback, none = over_all("error feedback"), over_all("no memory")
    return [
        Record("Test error of a quarter, feedback", quarter, 0.02895, 0.0028),
        Record("Loss of 1/64 over all, at one step", feedback, 1.121, 0.018),
        Record("Loss of 1/64 over all, no memory", none, 8.383, 0.12),
        Record("Loss of 1/64, DEF / feedback", over_feedback(), 0.03789, 0.0051),
    ]


def answer(found: Found) -> str:
    """What a share costs, and what DEF gains."""
    both = error_more(0.25), error_more(LEAST)
    lost = [between(own, found, same=0.0, form="+.3f") for own in both]
    return (
        "With error feedback and step and momentum tuned, to send a quarter changes the"
        f" test error by {lost[0]}, and to send 1/64 by {lost[1]}. Of 1/64, DEF has"
        f" {between(over_feedback(), found)} times the training loss of error feedback."
    )
