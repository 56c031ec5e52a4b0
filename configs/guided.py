"""Does a replay of gradients that agree with verification help under delay?

SGD and guided SGD (Sharma, arXiv:2101.07259) train logistic regression on breast cancer
data under geometric delays (the staleness of many workers with memoryless service
times). At every 10th update guided SGD uses up to 4 of the last gradients once more.
All methods have the same number of gradients and the same step sizes. Guided SGD also
needs a verification loss at each update, the forward pass of `verification` examples,
here five times a batch. A control makes as many replays without a verification loss.
The author's code computes an old gradient again; here the old gradient is stored, which
costs nothing.

    python -m experiments.main --config=configs/guided.py --workdir=runs/guided
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, figures, optimizer, percent
from experiments.configs import at_least, positive
from experiments.tasks import breast_cancer

LIMITS = at_least(1, "period")
LIMITS |= at_least(0, "mean_delay", "max_delay")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: plain SGD, and two numbers of replays."""
    return ConfigDict(
        dict(
            learning_rate=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
            mean_delay=(0, 4, 16),  # of geometric delays, updates
            max_delay=96,  # updates; longer delays are cut to this
            period=10,  # rho, updates
            replays=(1, 4),  # psi, the largest numbers of gradients replayed at once
            verification=42,  # training examples, a tenth as in the author's code
            batch_size=8,  # examples per update
            updates=1000,
            seeds=20,
            tuning_seeds=6,  # seeds that choose the step size; not reported
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each number of replays."""
    task = breast_cancer(batch_size=config.batch_size)
    drawn = breast_cancer(batch_size=config.verification).batches(0, 0, 1)
    examples = jax.tree.map(lambda leaf: leaf[0], drawn)

    def arm(name, *before):
        def late(learning_rate, mean_delay, key):
            rule = optax.chain(*before, optax.sgd(learning_rate))
            delay = dj.delays.geometric(key, mean_delay)
            return dj.delayed(rule, delay, max_delay=config.max_delay)

        return Arm(training=optimizer(late), labels={"replays": name})

    def guided(replays, loss_fn):
        return dj.guided(loss_fn, period=config.period, replays=replays)

    def verified(params):
        return task.loss(params, examples)

    def unverified(params):  # it never falls: each batch counts as consistent
        return 0.0

    most, rates = max(config.replays), config.learning_rate
    small = dict(learning_rate=min(rates), mean_delay=max(config.mean_delay))
    return Experiment(
        question="Does a replay of gradients that agree with verification help?",
        task=task,
        arms=[
            arm("none"),
            *(arm(f"up to {n}", guided(n, verified)) for n in config.replays),
            arm(f"{most}, unverified", guided(most, unverified)),
        ],
        grid={"learning_rate": config.learning_rate, "mean_delay": config.mean_delay},
        seeds=config.seeds,
        tuned="learning_rate",
        updates=config.updates,
        tuning_seeds=config.tuning_seeds,
        answer=[
            Effect(metric="train_loss", against={"replays": "none"}, size=percent(10)),
            Effect(
                metric="train_loss",
                against={"replays": "none"},
                size=percent(10),
                where=small,
                name="training loss at the smallest step and the longest delays",
            ),
        ],
        figures=[
            figures.over("mean_delay", "train_loss", fixed=False),
            figures.over(
                *("learning_rate", "train_loss"),
                fixed=False,
                only={"mean_delay": (16,)},
                title="Is a replay more than a larger step? Mean delay 16",
            ),
        ],
    )
