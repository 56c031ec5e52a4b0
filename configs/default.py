"""How late may a gradient be before Adam notices?

Adam trains an MLP on scikit-learn's digits with gradients 0 to 32 updates late: with
the step size that is best without delay, and with the step size tuned at each delay.

    python -m experiments.main --config=configs/default.py --workdir=runs/default
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, configs, figures, percent, points, tasks

LIMITS = configs.at_least(1, "width")
LIMITS |= configs.at_least(0, "delay")
LIMITS |= configs.positive("learning_rate")


def get_config() -> ConfigDict:
    """The values that the command line may change; a tuple is an axis of the grid."""
    return ConfigDict(
        dict(
            optimizer="adam",  # or sgd, lion, muon, my_module:make (step size -> tx)
            learning_rate=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
            delay=(0, 1, 2, 4, 8, 16, 32),  # updates
            batch_size=32,  # examples per update; 0 is the full batch
            width=32,  # hidden units
            updates=1000,
            seeds=16,
            tuning_seeds=6,  # seeds that choose the step size; not reported
        )
    )


OPTIMIZERS = {
    "adam": optax.adam,
    "sgd": optax.sgd,
    "lion": optax.lion,
    "muon": lambda rate: optax.contrib.muon(rate, consistent_rms=0.2),
}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: 42 cells under 22 seeds in one compiled program."""
    make = configs.named("optimizer", config.optimizer, OPTIMIZERS)
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(make(learning_rate), delay, max_delay=max_delay)

    return Experiment(
        question="How late may a gradient be before Adam notices?",
        task=tasks.digits_mlp(batch_size=config.batch_size, width=config.width),
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        answer=[
            Effect(metric="train_loss", against={"delay": 0}, size=percent(10)),
            Effect(metric="test_accuracy", against={"delay": 0}, size=points(1)),
        ],
        figures=[
            figures.over("delay", "test_error"),
            figures.best_step("delay", "learning_rate"),
            figures.curves("train_loss"),
        ],
    )
