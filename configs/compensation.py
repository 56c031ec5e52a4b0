"""Does delay compensation undo the harm of a stale gradient?

An MLP on scikit-learn's digits, SGD: plain, DC-ASGD in both forms at several strengths,
and Gap-Aware, each with its step tuned at each delay.

    python -m experiments.main --config=configs/compensation.py --workdir=runs/dc
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """The default with SGD and three compensations."""
    config = default.get_config()
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    config.delay.value = (0, 4, 16, 32)
    config.compensation.name = ("none", "dc", "dc_adaptive", "gap_aware")
    config.compensation.strength = (0.04, 0.4, 2.0)
    return config
