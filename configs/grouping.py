"""How many groups balance one straggler against staleness?

The last of sixteen workers is four times slower. The members of a group wait for each
other, but groups do not (Basu et al., HiPC 2018): one group is synchronous, sixteen are
asynchronous. Progressive grouping chooses their number every 5 or every 20 updates: the
fewest groups with which, by its formula, the time is at most 1.2 times the time without
the straggler. With dynamic data a group that is ready takes the next batch; with static
data the straggler's group must train on its share as well. An MLP on scikit-learn's
digits is trained on the same number of examples by SGD, with plain steps or with steps
divided by staleness.

    python -m experiments.main --config=configs/grouping.py --workdir=runs/grouping
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Simulation, along, figures, percent, points
from experiments.configs import at_least, positive
from experiments.tasks import digits_mlp

LIMITS = at_least(1, "workers", "examples")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: the cluster without and with a straggler, and 1 to 16 groups."""
    return ConfigDict(
        dict(
            workers=16,
            slow_factor=4.0,  # of the last worker's times
            groups=(1, 2, 4, 8, 16),
            examine_every=(5, 20),  # updates between choices of progressive grouping
            service_spread=0.1,  # standard deviation of a gradient's time, mean 1 s
            learning_rate=(0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0),
            batch_size=8,  # examples per gradient
            examples=27_000,  # twenty epochs
            seeds=5,
            tuning_seeds=5,  # seeds that choose the step size; not reported
        )
    )


progressive = "progressive, every {} updates".format
PLAIN, DIVIDED = "plain steps", "divided by staleness"
LAWS = {PLAIN: dj.modulation.polynomial(0.0), DIVIDED: dj.modulation.inverse}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: twelve protocols, each with both laws."""
    protocols, workers = dj.cluster.protocols, config.workers
    service = dj.cluster.lognormal(1.0, config.service_spread)
    slowdown = [1.0] * (workers - 1) + [config.slow_factor]
    equal = dj.cluster.Cluster(workers, service)
    one_slow = dj.cluster.Cluster(workers, service, slowdown=slowdown)

    def arm(protocol, cluster=one_slow, **labels):
        simulated = Simulation(cluster, protocol)
        return labels, along(simulated, optax.sgd, each=dj.scale_by_staleness)

    arms = [arm(protocols.groups(1), equal, grouping="no straggler", groups=1)]
    for kind, counts in dict(dynamic=config.groups, static=config.groups[1:]).items():
        for count in counts:  # one group has the same data in both
            protocol = protocols.groups(count, data=kind)
            arms.append(arm(protocol, grouping=f"{kind} data", groups=count))
    for every in config.examine_every:
        protocol = protocols.progressive_groups(workers, every=every)
        arms.append(arm(protocol, grouping=progressive(every)))
    whole = dict(grouping="no straggler", groups=1)
    return Experiment(
        question="How many groups balance one straggler against staleness?",
        task=digits_mlp(batch_size=config.batch_size),
        arms=arms,
        grid={"learning_rate": config.learning_rate, "law": LAWS},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
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
                where={"grouping": ("no straggler", "dynamic data")},
                name="test accuracy with dynamic data",
            ),
        ],
        figures=[
            figures.over("groups", "seconds", fixed=False, only={"law": (PLAIN,)}),
            figures.over("groups", "test_error", panels="law"),
        ],
    )
