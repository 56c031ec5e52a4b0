"""Does a learning rate that falls with staleness help, and where must it stand?

An MLP on scikit-learn's digits under geometric delays (the staleness of many workers
with memoryless service times), SGD and Adam. Each law stands after the optimizer, where
it scales the step, and before it, where it weights gradients. Steps are tuned for each
law, optimizer and delay: a law that only makes steps smaller gains nothing then.

    python -m experiments.main --config=configs/modulation.py --workdir=runs/modulation

About 25 seconds on two cores. Seen (2026-11-21, commit cd6429a070e3, jax 0.10.2):
Once the step is tuned a law changes little: training loss 0.103 without and 0.096 with
1/tau, at a mean delay of 16, less than the seeds differ. SGD cannot tell the two places
apart; Adam can.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """The default with three laws on both sides of two optimizers."""
    config = default.get_config()
    config.opt.name = ("sgd", "adam")
    config.opt.sgd.learning_rate = (0.03, 0.1, 0.3, 1.0, 3.0)
    config.opt.adam.learning_rate = (0.001, 0.003, 0.01, 0.03, 0.1)
    config.delay.law = ("geometric",)
    config.delay.value = (0, 4, 16)
    config.delay.max_delay = 96
    config.modulation.law = ("none", "inverse", "polynomial")
    config.modulation.placement = ("after", "before")
    config.expected = ConfigDict(
        {
            "train_loss/adam/delay=16": 0.103,
            "train_loss/adam/delay=16/modulation=inverse,placement=after": (0.08, 0.11),
            "train_loss/adam/delay=16/modulation=inverse,placement=before": (
                0.08,
                0.12,
            ),
            "train_loss/sgd/delay=16": 0.113,
            "train_loss/sgd/delay=16/modulation=polynomial,placement=after": 0.111,
            "train_loss/sgd/delay=16/modulation=polynomial,placement=before": 0.111,
        }
    )
    return config
