"""How many groups balance one straggler against staleness?

Sixteen workers, the last of them four times slower. The members of a group wait for
each other, groups do not (Basu et al., HiPC 2018): one group is synchronous, sixteen
are asynchronous. Progressive grouping chooses their number, every 5 or every 20
updates: as few as its formula allows for 1.2 times the time without the straggler. With
dynamic data whoever is ready takes the next batch; with static data the straggler's
group must do its share as well. An MLP on scikit-learn's digits, the same number of
examples for all, SGD with plain steps or with steps divided by staleness.

    python -m experiments.main --config=configs/grouping.py --workdir=runs/grouping
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import (
    Experiment,
    Published,
    Record,
    Simulation,
    along,
    figures,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, mean, ratio, tuned
from experiments.results.tables import Found

LIMITS = at_least(1, "workers", "examples")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The cluster without and with a straggler, and 1 to 16 groups."""
    return ConfigDict(
        dict(
            workers=16,
            slow_factor=4.0,  # of the last worker's times
            groups=(1, 2, 4, 8, 16),
            examine_every=(5, 20),  # updates between choices of progressive grouping
            service_spread=0.1,  # of a gradient's time of 1 s, standard deviation
            learning_rate=(0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0),
            batch_size=8,  # examples a gradient
            examples=27_000,  # twenty times all of them
            seeds=5,
            tuning_seeds=5,  # that choose the step size, and are not reported
        )
    )


progressive = "progressive, every {} updates".format
PLAIN, DIVIDED = "plain steps", "divided by staleness"


def experiment(config: ConfigDict) -> Experiment:
    """Twelve protocols; the law is an axis."""
    protocols, workers = dj.cluster.protocols, config.workers
    service = dj.cluster.lognormal(1.0, config.service_spread)
    slowdown = [1.0] * (workers - 1) + [config.slow_factor]
    equal = dj.cluster.Cluster(workers, service)
    one_slow = dj.cluster.Cluster(workers, service, slowdown=slowdown)

    def divided(law):
        """By a power of the staleness, 0 or 1."""
        return dj.scale_by_staleness(lambda tau: dj.modulation.inverse(tau) ** law)

    def arm(protocol, cluster=one_slow, **labels):
        return labels, along(Simulation(cluster, protocol), optax.sgd, each=divided)

    arms = [arm(protocols.groups(1), equal, grouping="no straggler", groups=1)]
    for kind, counts in dict(dynamic=config.groups, static=config.groups[1:]).items():
        for count in counts:  # one group is the same with both
            own = protocols.groups(count, data=kind)
            arms.append(arm(own, grouping=f"{kind} data", groups=count))
    for every in config.examine_every:
        own = protocols.progressive_groups(workers, every=every)
        arms.append(arm(own, grouping=progressive(every)))
    return Experiment(
        question="How many groups balance one straggler against staleness?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=arms,
        grid={"learning_rate": config.learning_rate, "law": {PLAIN: 0, DIVIDED: 1}},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        examples=config.examples,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over("groups", "seconds", fixed=False, only={"law": (PLAIN,)}),
            figures.over("groups", "test_error", panels="law"),
        ],
    )


def slower(grouping: str, **where: int) -> Measure:
    """The run's time over that without a straggler."""
    run = mean("seconds", grouping=grouping, **where)
    return ratio(run, mean("seconds", grouping="no straggler"))


def accuracy(grouping: str, law: str = DIVIDED, **where: int) -> Measure:
    """Test accuracy at the best step."""
    return tuned("test_accuracy", grouping=grouping, law=law, **where)


def change(grouping: str, law: str = DIVIDED, **where: int) -> Measure:
    """Test accuracy less the accuracy without a straggler."""
    return difference(accuracy(grouping, law, **where), accuracy("no straggler", law))


def published(config: ConfigDict) -> list[Published]:
    """What progressive grouping costs; how often it looks again is not published."""
    tried = "Every 5, where it holds: the first 20 are as slow as the straggler."
    late, worse = dict(at_most=1.2), dict(at_least=-0.025)
    return [
        Published(
            text=f"Progressive grouping {text}; it looks again every {every} updates",
            source="Basu, Saxena, Panja, Verma, HiPC 2018",
            said=said,
            setting="one node is later by more than 300 %; model and data not public",
            measure=measure(progressive(every)),
            tried=tried * (every == 20 and measure is slower),
            **bound,
        )
        for every in config.examine_every
        for text, said, measure, bound in (
            ("takes 1.2 times as long at most", "20 % more time", slower, late),
            ("loses 2.5 points of accuracy at most", "2.5 %", change, worse),
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Times, and accuracies with steps divided by staleness."""
    del config
    one, four, all_of = (dict(grouping="dynamic data", groups=n) for n in (1, 4, 16))
    seconds = mean("seconds", grouping="no straggler")
    return [
        Record("Seconds without a straggler", seconds, 249.2, 0.48),
        Record("Time over that, one group", slower(**one), 3.371, 0.0077),
        Record("Time over that, 4 groups", slower(**four), 1.143, 0.0018),
        Record("Time over that, 16 groups", slower(**all_of), 0.8895, 0.0018),
        Record("Test accuracy, one group", accuracy(**one), 0.9617, 0.0036),
        Record("Test accuracy, 16 groups", accuracy(**all_of), 0.9541, 0.0052),
    ]


def answer(found: Found) -> str:
    """How few groups keep the straggler's cost below 20 %, and what they cost."""
    counts = {*found.results.query("grouping == 'dynamic data'")["groups"]}
    groups = [dict(grouping="dynamic data", groups=count) for count in sorted(counts)]
    few = next((own for own in groups if slower(**own)(found) <= 1.2), groups[-1])
    plain, divided = (
        between(change(law=law, **few), found, same=0.0, form="+.3f")
        for law in (PLAIN, DIVIDED)
    )
    return (
        f"With {few['groups']:g} groups the run takes {slower(**few)(found):.2f} times"
        " as long as without the straggler (with one group"
        f" {slower(**groups[0])(found):.2f} times). With the step tuned for each, test"
        f" accuracy changes by {plain} with plain steps, and by {divided} with steps"
        " divided by staleness."
    )
