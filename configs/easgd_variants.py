"""Which variant of elastic averaging, and how often must workers see the center?

The eight variants of You, Buluc and Demmel (arXiv:1708.02983) on eight workers, each
meeting the center after 1, 4, 16 or 64 local steps: an MLP on scikit-learn's digits.
Service times are lognormal with mean 1 s, and a message takes 0.1 s, one at a time
where the center has a lock; all have 400 simulated seconds and their own best step.

    python -m experiments.main --config=configs/easgd_variants.py \
        --workdir=runs/easgd_variants
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, figures, replicas, tasks
from experiments.results.measures import mean, tuned
from experiments.training import methods


def get_config() -> ConfigDict:
    """Eight variants with four periods."""
    return ConfigDict(
        dict(
            workers=8,
            period=(1, 4, 16, 64),  # local steps between two meetings
            service_spread=0.2,  # of a gradient's time of 1 s, standard deviation
            message_seconds=0.1,  # one at a time where there is a lock
            seconds=400.0,  # simulated
            learning_rate=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
            batch_size=4,  # examples a gradient
            seeds=3,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """An arm for each variant and period."""
    variants = (
        *(methods.original_easgd, methods.async_easgd, methods.async_measgd),
        *(methods.ea_wild, methods.sync_easgd),
        *(methods.async_sgd, methods.async_msgd, methods.hogwild_sgd),
    )
    link = dj.cluster.Communication(
        message_bytes=config.message_seconds, bytes_per_second=1.0, serial=True
    )
    cluster = dj.cluster.Cluster(
        config.workers,
        dj.cluster.lognormal(1.0, config.service_spread),
        communication=link,
    )

    def arm(variant, period):
        training = replicas(variant(period=period), cluster, optax.sgd)
        return dict(variant=variant.__name__, period=period), training

    def updates(variant, about):
        measure = mean("updates", variant=variant, period=1)
        text = f"Steps of {variant} that meets at each"
        return Claim(text, measure, about=about, within=0.02 * about)

    def accuracy(variant, period, about, within=0.02):
        measure = tuned("test_accuracy", variant=variant, period=period)
        text = f"Test accuracy of {variant}, every {period}"
        return Claim(text, measure, about=about, within=within)

    at_each = dict(variant="async_sgd", period=1)
    return Experiment(
        question="Which elastic averaging, and how often must workers see the center?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(variant, period) for variant in variants for period in config.period],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        seconds=config.seconds,
        claims=[
            updates("async_easgd", 260),
            updates("ea_wild", 357),
            accuracy("async_easgd", 16, 0.957),
            accuracy("async_easgd", 64, 0.932),
            accuracy("async_measgd", 16, 0.956),
            accuracy("ea_wild", 16, 0.95),
            accuracy("ea_wild", 64, 0.933),
            accuracy("sync_easgd", 64, 0.923),
            Claim(
                "Test accuracy of async_sgd, every 1, at a step of 0.03",
                mean("test_accuracy", **at_each, learning_rate=0.03),
                about=0.943,
                within=0.02,
            ),
            accuracy("async_sgd", 16, 0.76, 0.1),
            accuracy("async_sgd", 64, 0.46, 0.15),
        ],
        figures=[
            figures.over(
                "period",
                "test_error",
                color="variant",
                fixed=False,
                x_label="local steps between two meetings",
            ),
            figures.curves("test_error", against="seconds", panels="period"),
        ],
        notes=(
            "Elastic averaging ends at 4 to 8 % test error whether workers meet the"
            " center after 1 or 64 steps, with a lock or without (EA-wild); with"
            " momentum at 4 to 5 %. What is pushed and forgotten fails from 16 steps"
            " on, 19 to 24 %, and 45 to 57 % at 64: its pushes of 8 workers add up. At"
            " every step the lock costs time: async_easgd takes 260 steps in 400 s,"
            " ea_wild 357."
        ),
    )
