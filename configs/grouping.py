"""How many groups balance one straggler against staleness?

The last of sixteen workers is four times slower. The members of a group wait for each
other, but groups do not (Basu et al., HiPC 2018): one group is synchronous, sixteen are
asynchronous. Progressive grouping chooses their number every 5 or every 20 updates: the
fewest groups with which, by its formula, the time is at most 1.2 times the time without
the straggler. Data are dynamic: a group that is ready takes the next batch. An MLP on
scikit-learn's digits is trained on the same number of examples by SGD, with plain steps
or with steps divided by staleness. The step of each arm is searched.

    python -m experiments.main --config=configs/grouping.py --workdir=runs/grouping
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Effect,
    Experiment,
    Range,
    Search,
    Simulation,
    along,
    figures,
    percent,
    points,
)
from experiments.configs import at_least, positive
from experiments.tasks import digits_mlp

SMALL = {"examples": 8_000, "groups": (1, 4, 16)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "workers", "examples")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: the cluster without and with a straggler, and 1 to 16 groups."""
    return ConfigDict(
        dict(
            workers=16,
            slow_factor=4.0,  # of the last worker's times
            groups=(1, 2, 4, 8, 16),
            examine_every=(5, 20),  # updates between choices of progressive grouping
            service_spread=0.1,  # standard deviation of a gradient's time, mean 1 s
            batch_size=8,  # examples per gradient
            examples=27_000,  # twenty epochs
            seeds=5,
            tolerance=0.1,  # tolerance of the search, as a share of the loss
        )
    )


progressive = "progressive, every {} updates".format
PLAIN, DIVIDED = "plain steps", "divided by staleness"
LAWS = {PLAIN: dj.modulation.polynomial(0.0), DIVIDED: dj.modulation.inverse}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: eight protocols, each with both laws."""
    protocols, workers = dj.cluster.protocols, config.workers
    service = dj.cluster.lognormal(1.0, config.service_spread)
    slowdown = [1.0] * (workers - 1) + [config.slow_factor]
    equal = dj.cluster.Cluster(workers, service)
    one_slow = dj.cluster.Cluster(workers, service, slowdown=slowdown)

    def arm(protocol, cluster=one_slow, **labels):
        simulated = Simulation(cluster, protocol)
        return labels, along(simulated, optax.sgd, each=dj.scale_by_staleness)

    arms = [arm(protocols.groups(1), equal, grouping="no straggler", groups=1)]
    for count in config.groups:
        arms.append(arm(protocols.groups(count), grouping="fixed", groups=count))
    for every in config.examine_every:
        protocol = protocols.progressive_groups(workers, every=every)
        arms.append(arm(protocol, grouping=progressive(every)))
    whole = dict(grouping="no straggler", groups=1)
    return Experiment(
        question="How many groups balance one straggler against staleness?",
        task=digits_mlp(batch_size=config.batch_size),
        arms=arms,
        grid={"learning_rate": Range(0.01, 2.0), "law": LAWS},
        seeds=config.seeds,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        examples=config.examples,
        answer=[
            Effect(
                metric="seconds",
                against=whole,
                size=percent(20),
                where={"law": PLAIN},
                name="simulated time, the same under both laws",
            ),
            Effect(
                metric="test_accuracy",
                against=whole,
                size=points(1),
                where={"grouping": ("no straggler", "fixed")},
                name="test accuracy with fixed groups",
            ),
        ],
        figures=[
            figures.over("groups", "seconds", fixed=False, only={"law": (PLAIN,)}),
            figures.over("groups", "test_error", panels="law"),
        ],
    )
