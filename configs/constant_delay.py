"""Does a constant delay cost accuracy, and does it change the train/test gap?

An MLP on scikit-learn's digits, SGD with and without a re-tuned step, gradients 0 to 64
updates late. At a fixed step the gap between training and test loss may fall with the
delay (Deng et al., arXiv:2308.09430), but so does the progress of training: the panel
beside it, with the step tuned anew at each delay, says which of the two it was.

    python -m experiments.main --config=configs/constant_delay.py --workdir=runs/gap

About 10 seconds on two cores. Seen (2026-11-21, commit cd6429a070e3, jax 0.10.2):
At a delay of 16 the gap is half of what it is undelayed, and the training loss 0.19
instead of 0.003: the gap is smaller because less has been learned. The step that is
best undelayed diverges at every delay tried.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """The default with SGD, longer delays and the gap drawn."""
    config = default.get_config()
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    config.delay.value = (0, 4, 8, 16, 32, 64)
    config.steps = 1500
    config.checkpoint_every = 500
    config.figures = ("over_delay", "gap_over_delay", "best_step", "loss_curves")
    config.expected = ConfigDict(
        {
            "test_accuracy/sgd/delay=0": 0.979,
            "test_accuracy/sgd/delay=16": 0.944,
            "test_accuracy/sgd/delay=64": 0.65,
            "gap/sgd/delay=0": 0.072,
            "gap/sgd/delay=16": 0.036,
        }
    )
    return config
