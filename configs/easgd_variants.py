"""Which variant of elastic averaging, and how often must workers see the center?

Eight workers train an MLP on scikit-learn's digits with the eight variants of You,
Buluc and Demmel (arXiv:1708.02983), and with Hogwild EASGD with momentum. A worker
meets the center after 1, 16 or 64 local steps. Service times are lognormal with mean 1
s. A message takes 0.1 s; a center with a lock takes one message at a time. Each variant
trains for 400 simulated seconds, at its best step.

    python -m experiments.main --config=configs/easgd_variants.py \
        --workdir=runs/easgd_variants
"""

import functools

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    points,
    replicas,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training import methods

VARIANTS = {
    "Original EASGD": methods.original_easgd,
    "Async EASGD": methods.async_easgd,
    "Async MEASGD": methods.async_measgd,
    "Hogwild EASGD": methods.ea_wild,
    "Hogwild MEASGD": functools.partial(methods.ea_wild, momentum=0.9),
    "Sync EASGD": methods.sync_easgd,
    "Async SGD": methods.async_sgd,
    "Async MSGD": methods.async_msgd,
    "Hogwild SGD": methods.hogwild_sgd,
}
ELASTIC = tuple(name for name in VARIANTS if name.endswith("EASGD"))

SMALL = {"seconds": 100.0}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "period") | at_least(2, "workers")
LIMITS |= at_least(0, "message_seconds") | positive("seconds", "tolerance")


def get_config() -> ConfigDict:
    """The config: nine variants with three periods."""
    return ConfigDict(
        dict(
            workers=8,
            period=(1, 16, 64),  # local steps between two meetings
            service_spread=0.2,  # standard deviation of a gradient's time, mean 1 s
            message_seconds=0.1,  # of a message; a lock admits one at a time
            seconds=400.0,  # simulated
            batch_size=4,  # examples per gradient
            seeds=16,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each variant and period."""
    link = dj.cluster.Communication(
        message_bytes=config.message_seconds, bytes_per_second=1.0, serial=True
    )
    service = dj.cluster.lognormal(1.0, config.service_spread)
    cluster = dj.cluster.Cluster(config.workers, service, communication=link)

    def arm(variant, period):
        training = replicas(VARIANTS[variant](period=period), cluster, optax.sgd)
        return dict(variant=variant, period=period), training

    def error(variants, **against):
        where = {"variant": variants}
        return Effect(metric="test_error", against=against, size=points(1), where=where)

    return Experiment(
        question="Which elastic averaging, and how often must workers see the center?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(variant, period) for variant in VARIANTS for period in config.period],
        grid={"learning_rate": Range(0.001, 1.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        answer=[
            error(ELASTIC, variant="Original EASGD"),
            error((*ELASTIC, "Async SGD"), period=config.period[0]),
        ],
        figures=[
            figures.over(
                *("period", "test_error"),
                **dict(color="variant", fixed=False),
                x_label="local steps between two meetings",
                title="Who needs to see the center often?",
            ),
            figures.curves("test_error", against="seconds", panels="period"),
        ],
    )
