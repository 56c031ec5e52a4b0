"""Which published rule for stale gradients is worth its cost?

Every rule of the library with SGD (momentum 0.9), and those that go with any optimizer
with Adam and Muon too, on clusters whose gradients are late by a constant, by a
memoryless or by a straggling cluster's staleness. An MLP on scikit-learn's digits. Each
rule has the same number of trials on each cluster: learning rates, each with one value
of the rule's own number. The trial is chosen on seeds that are not reported.

    python -m experiments.main --config=configs/rules_digits.py --workdir=runs/rules
    python -m experiments.main --config=configs/rules_digits.py:large \
        --workdir=runs/rules_large

The first takes 15 minutes on two cores, the second a night on a GPU.
"""

import functools

import optax
from ml_collections import ConfigDict

from experiments import Experiment, cures, figures, tasks


def get_config(size: str = "small") -> ConfigDict:
    """Few delays and trials, or all.

    Args:
        size: "small" or "large".
    """
    large = size == "large"
    if size not in ("small", "large"):
        raise ValueError(f"the size must be small or large, got {size!r}.")
    return ConfigDict(
        dict(
            delay=(1, 2, 4, 8, 16, 32) if large else (4, 16),  # mean, updates
            trials=16 if large else 8,  # of each rule on each cluster
            optimizers=("sgd", "adam", "muon"),
            sgd_learning_rate=(0.001, 1.0),  # the smallest and the largest
            adam_learning_rate=(0.0003, 0.3),
            muon_learning_rate=(0.001, 1.0),
            slowest=5.0,  # times slower than the others, the straggler
            batch_size=32,  # examples a gradient
            updates=2000 if large else 500,
            seeds=10 if large else 5,
        )
    )


def optimizers(config: ConfigDict) -> dict[str, cures.Optimizer]:
    """Directions of three optimizers; each has its learning rates."""

    def muon(momentum):
        own = optax.contrib.muon(1.0, beta=momentum, consistent_rms=0.2)
        return optax.chain(own, optax.scale(-1.0))

    known = {
        "sgd": (optax.trace, 0.9),
        "adam": (optax.scale_by_adam, 0.9),
        "muon": (muon, 0.95),
    }
    unknown = set(config.optimizers) - set(known)
    if unknown:
        raise ValueError(
            f"`optimizers` must be among {', '.join(known)}, got {min(unknown)!r}."
        )
    return {
        name: cures.Optimizer(*known[name], config[f"{name}_learning_rate"])
        for name in config.optimizers
    }


def compared(config, task, question, *, metric="train_loss", shape=None, **options):
    """The comparison on a task."""
    shaped = {} if shape is None else {"shape": shape}
    clusters = cures.clusters(config.delay, slowest=config.slowest)
    won_back = functools.partial(cures.won_back, metric=metric)
    return Experiment(
        question=question,
        task=task,
        arms=cures.arms(
            cures.CURES,
            optimizers(config),
            clusters,
            task,
            trials=config.trials,
            **shaped,
        ),
        seeds=config.seeds,
        updates=config.updates,
        evaluations=10,
        figures=[
            figures.shares(
                won_back,
                title="What a rule wins back of the loss that lateness costs",
                x_label="share won back; 0 % is plain delay, its step tuned alike",
            )
        ],
        tables=[
            figures.Table(
                "rules",
                "Excess loss over no delay, and the share of plain delay's that a rule"
                " wins back, over all late clusters; intervals of 95 % over seeds",
                functools.partial(cures.table, metric=metric),
            )
        ],
        **options,
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer and rule."""
    return compared(
        config,
        tasks.digits_mlp(batch_size=config.batch_size),
        "Which rule for stale gradients is worth its cost, once its step is tuned?",
    )
