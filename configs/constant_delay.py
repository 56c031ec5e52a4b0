"""Does a constant delay cost accuracy, and does it change the train/test gap?

An MLP on scikit-learn's digits, SGD with and without a re-tuned step, gradients 0 to 64
updates late. At a fixed step the gap between training and test loss may fall with the
delay (Deng et al., arXiv:2308.09430), but so does the progress of training: the step
tuned anew at each delay says which of the two it was.

    python -m experiments.main --config=configs/constant_delay.py --workdir=runs/gap
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results.measures import difference, kept, tuned


def get_config() -> ConfigDict:
    """SGD, and delays longer than the default's."""
    return ConfigDict(
        dict(
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            delay=(0, 4, 8, 16, 32, 64),  # updates
            batch_size=32,  # examples an update
            width=32,  # hidden units
            updates=1500,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """42 cells, one program."""
    max_delay = configs.check_delays("delay", config.delay, config.updates)

    def late(learning_rate, delay):
        return dj.delayed(optax.sgd(learning_rate), delay, max_delay=max_delay)

    def accuracy(delay):
        return tuned("test_accuracy", delay=delay)

    def gap_at_one_step(delay):
        """At the step that is best for 64, no delay diverges."""
        return kept("gap", best_at=dict(delay=64), delay=delay)

    return Experiment(
        question="Does a constant delay cost accuracy, or change the train/test gap?",
        task=tasks.digits_mlp(batch_size=config.batch_size, width=config.width),
        training=late,
        grid={"learning_rate": config.learning_rate, "delay": config.delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        claims=[
            Claim("Test accuracy undelayed", accuracy(0), about=0.977, within=0.01),
            Claim("16 updates late", accuracy(16), about=0.931, within=0.02),
            Claim("64 updates late", accuracy(64), about=0.68, within=0.1),
            Claim("Gap undelayed", tuned("gap", delay=0), about=0.072, within=0.02),
            Claim("Gap 16 late", tuned("gap", delay=16), about=0.036, within=0.015),
            Claim(
                "Training loss 16 late: less has been learned",
                tuned("train_loss", delay=16),
                about=0.19,
                within=0.05,
            ),
            Claim(
                "What 32 updates of delay add to the gap at the step best for 64",
                difference(gap_at_one_step(32), gap_at_one_step(0)),
                about=0.0,
                within=0.01,
            ),
        ],
        figures=[
            figures.over("delay", "test_error"),
            figures.over("delay", "gap"),
            figures.best_step("delay"),
            figures.curves("train_loss"),
        ],
        notes=(
            "At a delay of 16 the gap is half of the undelayed one, and the training"
            " loss 0.19 in place of 0.003: the gap is smaller because less has been"
            " learned. At one step that is stable for all of them, 0.01 to 0.03, no"
            " delay changes the gap. The step that is best undelayed diverges at every"
            " other delay."
        ),
    )
