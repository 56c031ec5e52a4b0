"""Does delay compensation undo the harm of a stale gradient?

An MLP on scikit-learn's digits, SGD: plain, DC-ASGD in both forms at several strengths,
and Gap-Aware, each with its step tuned at each delay.

    python -m experiments.main --config=configs/compensation.py --workdir=runs/dc

About 20 seconds on two cores. Seen (2026-11-21, commit cd6429a070e3, jax 0.10.2):
At a delay of 4 the adaptive form more than halves the training loss (0.10 to 0.04); at
16 nothing helps much once the step is tuned.
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
    config.expected = ConfigDict(
        {
            "train_loss/sgd/delay=4": 0.102,
            "train_loss/sgd/delay=4/compensation=dc_adaptive,strength=2": 0.041,
            "train_loss/sgd/delay=4/compensation=gap_aware": 0.086,
            "train_loss/sgd/delay=16": 0.286,
            "train_loss/sgd/delay=16/compensation=dc,strength=2": 0.287,
        }
    )
    return config
