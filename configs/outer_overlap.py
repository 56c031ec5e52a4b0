"""What does an outer step cost that comes late?

Four workers take 10 steps of Adam, then exchange models for an outer optimizer, SGD
with Nesterov momentum. They wait for the result, or go on, and it arrives 2 or 8 steps
later. Then the steps in between are lost (overwriting, as in torchft and MaxText), half
of them is lost (blended, Streaming DiLoCo), or none (corrected). Eager workers take the
outer step at once, with their own change and the changes of the others in the round
before (Eager DiLoCo). A control is one worker alone with the same outer optimizer,
which never waits. All numbers are searched, for each delay and merge: the step of Adam,
and step and momentum of the outer optimizer. The loss is measured when the last
exchange has arrived. Workers that do not wait train that many steps longer, so that all
have the same number of outer steps. Eager workers have taken them after their last
round, and the loss of their mean model is measured.

    python -m experiments.main --config=configs/outer_overlap.py \
        --workdir=runs/outer_overlap
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, figures, replicas, tasks
from experiments.configs import at_least, check_rounds, positive
from experiments.results.effects import percent
from experiments.training import methods

SMALL = {"updates": 20, "delay": (2,)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(2, "workers") | at_least(1, "period", "delay")
LIMITS |= positive("tolerance")

MERGES = {
    "overwriting": dj.averaging.overwriting,
    "blended": dj.averaging.blended(0.5),
    "corrected": dj.averaging.corrected,
}
WAITS, EAGER, ALONE = "waits", "eager", "one worker"


def get_config() -> ConfigDict:
    """The config: four workers, and two delays of an exchange."""
    return ConfigDict(
        dict(
            workers=4,
            period=10,  # steps between two exchanges
            delay=(2, 8),  # steps for which an exchange is in flight
            updates=100,  # of each worker, until the last exchange starts
            batch_size=8,  # examples per gradient of a worker
            seeds=16,
            tolerance=0.05,  # of the search, a share of the loss
        )
    )


def adam(learning_rate):
    """The optimizer of each worker."""
    return optax.adam(learning_rate)


def nesterov(outer_step, outer_decay):
    """The outer optimizer; `outer_step` is the sum of steps that a change causes."""
    return optax.sgd(outer_step * outer_decay, 1.0 - outer_decay, nesterov=True)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: each merge with each delay, workers that wait, and one worker."""
    check_rounds(config.updates, config.period)

    def training(method, workers):
        cluster = dj.cluster.Cluster(workers, dj.cluster.constant(1.0))
        return replicas(method, cluster, adam)

    def arm(name, workers, delay=0, merge=dj.averaging.overwriting):
        method = methods.outer(nesterov, config.period, delay, merge)
        return Arm(
            training=training(method, workers),
            labels={"merge": name} | ({"delay": delay} if delay else {}),
            updates=config.updates + delay,
        )

    eager = methods.eager_outer(nesterov, config.period)

    def cost(over, *names, metric="train_loss"):
        return Effect(
            metric=metric,
            against={"merge": over},
            size=percent(10),
            where={"merge": (over, *names)},
        )

    return Experiment(
        question="What does an outer step cost that comes late?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[
            arm(WAITS, config.workers),
            arm(ALONE, 1),
            *(
                arm(name, config.workers, delay, merge)
                for name, merge in MERGES.items()
                for delay in config.delay
            ),
            Arm(training=training(eager, config.workers), labels={"merge": EAGER}),
        ],
        grid={
            "learning_rate": Range(1e-3, 0.1),
            "outer_step": Range(1.0, 10.0),
            "outer_decay": Range(0.05, 1.0, off=1.0),
        },
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        answer=[
            cost(WAITS, *MERGES, EAGER, ALONE),
            cost("overwriting", "blended", "corrected"),
            cost(WAITS, *MERGES, EAGER, metric="test_loss"),
        ],
        figures=[
            figures.over("delay", "train_loss", color="merge", fixed=False),
            figures.over("delay", "test_loss", color="merge", fixed=False),
        ],
    )
