"""Which published rule for stale gradients is worth its cost?

Every rule of the library: with SGD (momentum 0.9), and those that go with any optimizer
with Adam and Muon too. The gradients come from clusters whose staleness is constant,
memoryless, or large for one slow worker. An MLP on scikit-learn's digits. Each rule has
the same number of trials on each cluster: learning rates, each with one value of the
rule's own number. The trial is chosen on seeds that are not reported.

    python -m experiments.main --config=configs/rules_digits.py --workdir=runs/rules
    python -m experiments.main --config=configs/rules_digits.py:large \
        --workdir=runs/rules_large

The first takes 15 minutes on two cores, the second a night on a GPU.
"""

from ml_collections import ConfigDict

from experiments import Experiment, configs, tasks
from experiments.comparison import Comparison, clusters, cures


def get_config(size: str = "small") -> ConfigDict:
    """Few delays and trials, or all.

    Args:
        size: "small" or "large".
    """
    large = configs.is_large(size)
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


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer and rule."""
    rates = {name: config[f"{name}_learning_rate"] for name in config.optimizers}
    comparison = Comparison(
        task=tasks.digits_mlp(batch_size=config.batch_size),
        optimizers=cures.optimizers(**rates),
        clusters=clusters(config.delay, slowest=config.slowest),
        trials=config.trials,
    )

    return comparison.experiment(
        question="Which rule for stale gradients is worth its cost, the step tuned?",
        seeds=config.seeds,
        updates=config.updates,
        claims=[
            comparison.cost("sgd", about=0.46, within=0.12),
            comparison.cost("adam", about=0.22, within=0.05),
            comparison.cost("muon", about=0.048, within=0.015),
        ],
        notes=(
            "Momentum is not tuned, so a share of what is won back says nothing about"
            " a rule yet: a fair comparison is being made."
        ),
    )
