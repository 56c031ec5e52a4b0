"""How late may a gradient be before Adam notices?

An MLP on scikit-learn's digits, Adam, gradients 0 to 32 updates late: the step size
that is best without delay kept at every delay, and the step size tuned anew at each.

    python -m experiments.main --config=configs/default.py --workdir=runs/default
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Record, configs, figures, tasks
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import difference, tuned
from experiments.results.tables import Found

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
            batch_size=32,  # examples an update; 0 is the full batch
            width=32,  # hidden units
            updates=1000,
            seeds=5,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


OPTIMIZERS = {
    "adam": optax.adam,
    "sgd": optax.sgd,
    "lion": optax.lion,
    "muon": lambda rate: optax.contrib.muon(rate, consistent_rms=0.2),
}


def experiment(config: ConfigDict) -> Experiment:
    """42 cells under eight seeds, one compiled program."""
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
        answer=answer,
        records=[
            Record("Test accuracy without delay", accuracy(0), 0.9697, 0.005),
            Record("Test accuracy 4 updates late", accuracy(4), 0.9595, 0.0044),
            Record("Test accuracy 32 updates late", accuracy(32), 0.8258, 0.021),
        ],
        figures=[
            figures.over("delay", "test_error"),
            figures.best_step("delay", "learning_rate"),
            figures.curves("train_loss"),
        ],
    )


def accuracy(delay: float) -> Measure:
    """Test accuracy at a delay, with the best step there."""
    return tuned("test_accuracy", delay=delay)


def answer(found: Found) -> str:
    """From which delay on accuracy is lost, beyond what seeds do."""
    delays = sorted(found.results["delay"].unique())
    lost = [estimate(difference(accuracy(0), accuracy(own)), found) for own in delays]
    noticed = [d for d, own in zip(delays, lost, strict=True) if own.interval()[0] > 0]
    first = f"At {noticed[0]:g} updates" if noticed else "At no delay that was tried"
    fresh, last = accuracy(0)(found), accuracy(delays[-1])(found)
    return (
        f"{first} test accuracy is lower than without delay, at 95 % confidence: it is"
        f" {fresh:.3f} without delay and {last:.3f} at {delays[-1]:g} updates, each"
        " with its own best step."
    )
