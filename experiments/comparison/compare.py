"""An experiment that compares rules, each with searched numbers on each cluster."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from experiments.comparison.clusters import NO_DELAY, late
from experiments.comparison.rules import BASELINE, Optimizer, Rule, Trial
from experiments.figures import Table
from experiments.tasks.task import Task
from experiments.training import Simulation, along
from experiments.training.experiment import Arm, Experiment
from experiments.training.ranges import Search

Shape = Callable[[int], optax.Schedule]
"""updates -> (step -> factor of the learning rate)."""


def compare(
    rules: Sequence[Rule],
    task: Task,
    optimizers: Mapping[str, Optimizer],
    *,
    clusters: Mapping[str, dj.cluster.Cluster] | None = None,
    updates: int = 500,
    shape: Shape = lambda updates: lambda step: 1.0,
    **options: Any,
) -> Experiment:
    """An experiment: plain delay and rules, with numbers searched on each cluster.

    Args:
        rules: the rules; plain delay is always added.
        task: the task to minimize. Its model has no state, and its loss needs no key.
        optimizers: {name: optimizer}.
        clusters: {name: cluster}; by default all clusters with late gradients. Each
            gradient makes one update when it arrives.
        updates: the number of gradients that a training computes, also on the server.
        shape: the shape of the learning rate over time.
        **options: options of `Experiment`, such as `seeds` or `search`. The report
            shows two tables of gains before the tables of the option `tables`.

    Example:
        >>> import optax
        >>> from experiments import run, tasks
        >>> from experiments.comparison import rules
        >>> half = rules.Rule("half", lambda t: t.descent(after=[optax.scale(0.5)]))
        >>> sgd = {"sgd": rules.OPTIMIZERS["sgd"]}
        >>> experiment = compare([half], tasks.digits_mlp(batch_size=32), sgd)
        >>> [arm.labels["rule"] for arm in experiment.arms]
        ['plain', 'half']
    """
    clusters = late() if clusters is None else clusters
    others = [rule for rule in rules if rule.name != BASELINE.name]
    arms = [
        _arm(rule, name, optimizer, task, clusters, updates, shape)
        for name, optimizer in optimizers.items()
        for rule in (BASELINE, *others)
        if rule.optimizers is None or name in rule.optimizers
    ]
    pairs = {(arm.labels["optimizer"], arm.labels["rule"]) for arm in arms}
    for i, arm in enumerate(arms):
        inner = arm.contains
        if inner and (inner["optimizer"], inner["rule"]) not in pairs:
            arms[i] = dataclasses.replace(arm, contains=None)
    arguments = dict(
        question="Which rule helps with late gradients?",
        task=task,
        arms=arms,
        updates=updates,
        seeds=20,
        evaluations=1,
        search=Search(),
    )
    arguments |= options
    gained = gain_tables([*clusters], logarithm=arguments["search"].relative)
    return Experiment(**arguments | {"tables": [*gained, *options.get("tables", ())]})


def gain_tables(clusters: Sequence[str], *, logarithm: bool = False) -> list[Table]:
    """Tables of gains over plain delay: means over late clusters, and by cluster.

    Args:
        clusters: the names of the experiment's clusters.
        logarithm: whether the search compares logarithms, as `Search.relative` says.
    """
    late = [name for name in clusters if name != NO_DELAY]

    def gains(run, by, **where):
        table = run.gains(BASELINE.name, by=by, logarithm=logarithm, **where)
        return table.sort_values([*by, "gain"], ascending=[True] * len(by) + [False])

    loss = "logarithm of the training loss" if logarithm else "training loss"
    caption = f"Gains of rules: the {loss} of plain delay minus the {loss} of the rule"
    means = f"{caption}, a mean over the clusters with late gradients"
    each = Table(
        "gains_by_cluster",
        f"{caption}, on each cluster",
        lambda run: gains(run, ["optimizer", "cluster"]),
    )
    if not late:
        return [each]
    return [
        Table("gains", means, lambda run: gains(run, ["optimizer"], cluster=late)),
        each,
    ]


def _arm(
    rule: Rule,
    name: str,
    optimizer: Optimizer,
    task: Task,
    clusters: Mapping[str, dj.cluster.Cluster],
    updates: int,
    shape: Shape,
) -> Arm:
    """The arm of a rule with an optimizer, on all its clusters."""
    updates = round(updates / rule.gradients)
    space = rule.whole_space(optimizer)
    workers = [cluster.workers for cluster in clusters.values()]
    batch = jax.tree.map(lambda leaf: leaf[0], task.batches(0, 0, 1))

    def server_loss(params):
        return task.loss(params, batch)

    def make(cluster, **numbers):
        mean = jnp.asarray(workers, jnp.int32)[cluster] - 1
        most, schedule = max(workers), shape(updates)
        trial = Trial(optimizer, numbers, schedule, mean, most, updates, server_loss)
        return rule.make(trial)

    # an experiment reads the names of the searched numbers from the signature
    kind = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(axis, kind) for axis in ("cluster", *space)]
    make.__signature__ = inspect.Signature(named)
    protocol = dj.cluster.protocols.k_batch_async(1)
    sources = {one: Simulation(cluster, protocol) for one, cluster in clusters.items()}
    numbers = {
        one: i
        for i, one in enumerate(clusters)
        if (rule.undelayed or one != NO_DELAY)
        and (rule.at_constant or not one.startswith("constant"))
    }
    return Arm(
        training=along(sources, make, output=rule.output),
        labels={"optimizer": name, "rule": rule.name},
        grid={"cluster": numbers, **space},
        updates=updates,
        contains=rule.contained() and {"optimizer": name, **rule.contained()},
    )
