"""Do long sequences make stragglers, and does it help not to wait for them?

The time of a gradient grows with the length of its sequences. Lengths are lognormal,
and a worker with a long sequence makes all others wait, as in a Transformer (WAGMA-SGD,
arXiv:2005.00124). Four methods train for the same simulated time; the model is an MLP
on scikit-learn's digits.

    python -m experiments.main --config=configs/sequence_lengths.py \
        --workdir=runs/sequence_lengths
"""

import numpy as np
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
    points,
    replicas,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.training import methods

SMALL = {"seconds": 60.0}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "token_seconds")
LIMITS |= positive("seconds", "tolerance")


def get_config() -> ConfigDict:
    """The config: four methods under three spreads of lengths."""
    return ConfigDict(
        dict(
            workers=16,
            spread=(0.0, 0.5, 1.0),  # standard deviation of a length's logarithm
            token_seconds=0.004,  # the time of a gradient, for each token
            mean_tokens=100,  # of a sequence
            seconds=240.0,  # simulated
            batch_size=4,  # examples per gradient
            seeds=20,
            tolerance=0.05,  # tolerance of the search, as a share of the loss
        )
    )


WAITS = "Allreduce-SGD"


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each method and spread."""
    compared = {
        WAITS: methods.allreduce_sgd(),
        "local SGD": methods.local_sgd(period=8),
        "eager-SGD": methods.eager_sgd(),
        "WAGMA-SGD": methods.wagma(period=11),
    }
    many = 4096  # lengths of each worker, which are then repeated

    def seconds(spread):
        draw = np.random.default_rng(0).lognormal
        drawn = draw(-0.5 * spread**2, spread, (config.workers, many))
        return config.token_seconds * (config.mean_tokens * drawn)

    def cluster(spread):
        known = seconds(spread)
        service = dj.cluster.by_batch(lambda worker, task: known[worker, task % many])
        return dj.cluster.Cluster(config.workers, service)

    def longest(method, spread):  # the mean time of a step that waits for the longest
        return seconds(spread).max(axis=0).mean() if method == WAITS else None

    shown = dict(color="method", fixed=False)
    shown["x_label"] = "spread of the logarithm of a length"
    return Experiment(
        question="Do long sequences make stragglers, and does it help not to wait?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            (
                dict(method=name, spread=spread),
                replicas(made, cluster(spread), optax.sgd),
            )
            for spread in config.spread
            for name, made in compared.items()
        ],
        grid={"learning_rate": Range(0.03, 3.0)},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        seconds=config.seconds,
        answer=[
            Effect(metric="updates", against={"method": WAITS}, size=percent(10)),
            Effect(metric="test_error", against={"method": WAITS}, size=points(1)),
        ],
        figures=[
            figures.over("spread", **shown),
            figures.over("spread", "updates", title="How many updates fit?", **shown),
            figures.update_times(theory=longest),
        ],
    )
