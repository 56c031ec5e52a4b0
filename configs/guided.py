"""Does a replay of gradients that agree with verification help under delay?

SGD and guided SGD (Sharma, arXiv:2101.07259) train logistic regression on
scikit-learn's digits under geometric delays (the staleness of many workers with
memoryless service times), which cost SGD accuracy. At every 10th update guided SGD uses
up to 4 of the last gradients once more. All methods have the same number of gradients,
and the step of each is searched. Guided SGD also needs a verification loss at each
update, the forward pass of `verification` examples, here seventeen times a batch. A
control makes as many replays without a verification loss. The author's code computes an
old gradient again; here the old gradient is stored, which costs nothing.

    python -m experiments.main --config=configs/guided.py --workdir=runs/guided
"""

import jax
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Arm,
    Effect,
    Experiment,
    Range,
    Search,
    figures,
    optimizer,
    points,
)
from experiments.configs import at_least, cut_after, positive
from experiments.tasks import digits_mlp

SMALL = {"updates": 100}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "period")
LIMITS |= at_least(0, "mean_delay")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: plain SGD, and two numbers of replays."""
    return ConfigDict(
        dict(
            mean_delay=(0, 16, 64),  # of geometric delays, updates
            period=10,  # rho, updates
            replays=(1, 4),  # psi, the largest numbers of gradients replayed at once
            verification=135,  # training examples, a tenth as in the author's code
            batch_size=8,  # examples per update
            updates=1000,
            seeds=20,
            tolerance=0.02,  # tolerance of the search, as a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each number of replays."""
    task = digits_mlp(depth=0, batch_size=config.batch_size)
    max_delay = cut_after("mean_delay", config.mean_delay, config.updates)
    verification = digits_mlp(depth=0, batch_size=config.verification)
    drawn = verification.batches(0, 0, 1)
    examples = jax.tree.map(lambda leaf: leaf[0], drawn)

    def arm(name, *before):
        def late(learning_rate, mean_delay, key):
            rule = optax.chain(*before, optax.sgd(learning_rate))
            delay = dj.delays.geometric(key, mean_delay)
            return dj.delayed(rule, delay, max_delay=max_delay)

        return Arm(training=optimizer(late), labels={"replays": name})

    def guided(replays, loss_fn):
        return dj.guided(loss_fn, period=config.period, replays=replays)

    def verified(params):
        return task.loss(params, examples)

    def unverified(params):  # it never falls: each batch counts as consistent
        return 0.0

    most = max(config.replays)
    return Experiment(
        question="Does a replay of gradients that agree with verification help?",
        task=task,
        arms=[
            arm("none"),
            *(arm(f"up to {n}", guided(n, verified)) for n in config.replays),
            arm(f"{most}, unverified", guided(most, unverified)),
        ],
        grid={"learning_rate": Range(0.01, 2.0), "mean_delay": config.mean_delay},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=[
            Effect(metric="test_error", against=against, size=points(1))
            for against in ({"mean_delay": 0}, {"replays": "none"})
        ],
        figures=[
            figures.over("mean_delay", "train_loss", fixed=False),
            figures.best_step("mean_delay", "learning_rate"),
        ],
    )
