"""Why does outer momentum fail where islands wait for nobody?

Four islands of unequal speed take 20 steps each with a new Adam, send the change of
their model, and begin again from the server's model. The server waits for all four
changes, or takes a step for each change that arrives: by SGD, with Nesterov's momentum,
or with a momentum that takes a step once in four arrivals (delayed Nesterov). The
momentum is 0.9, or searched. The steps of Adam and of the server are searched for each
arm, and each arm is also trained at the optimum of islands that wait. With delayed
Nesterov islands also take steps by speed (DyLU), but five at least: 20, 15, 7 and 5. A
control is one island alone. All arms train on the same number of examples, and the loss
is on held-out examples, with which the steps are searched too.

Speeds, classes and the least five steps are from the toy task that Liu et al.
(arXiv:2401.09135) released, with fewer dimensions and half the spread; `:characters`
trains on Python's manual.

    python -m experiments.main --config=configs/async_islands.py \
        --workdir=runs/async_islands
"""

import functools

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, Simulation, along
from experiments.configs import at_least, named, positive
from experiments.figures import bars, curves
from experiments.results.effects import percent
from experiments.tasks import char_lm, gaussian_mixtures

SMALL = {"rounds": 4}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "rounds", "steps") | positive("tolerance")

SECONDS = (0.58, 0.75, 1.51, 3.33)
"""The time of a local step on each island."""
FEWEST = 5
"""The least number of steps in a round, in the released code."""

ALL, NONE, ONE = "wait for all", "wait for nobody", "one island"
SGD, NESTEROV, DELAYED = "SGD", "Nesterov", "delayed Nesterov"
SEARCHED, BY_SPEED = ", searched", ", steps by speed"

_SIZE = dict(context=32, width=16, evaluated_tokens=4096)
TASKS = {"toy": gaussian_mixtures, "characters": functools.partial(char_lm, **_SIZE)}


def get_config(task: str = "toy") -> ConfigDict:
    """The config of the toy task, or of characters."""
    short = task == "characters"
    return ConfigDict(
        dict(
            task=task,  # or my_module:make, a function of the batch
            steps=20,  # H, of an island in a round
            rounds=16 if short else 64,  # of four islands
            batch_size=2 if short else 8,  # examples or windows per step
            seeds=8 if short else 16,
            tolerance=0.03 if short else 0.05,  # of the search, a share of the loss
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: servers that wait for all and for nobody, and one island."""
    protocols, n = dj.cluster.protocols, len(SECONDS)
    rates = {"outer_step": Range(0.3, 10.0)}

    def sgd(outer_step):  # `outer_step` is the sum of all steps that a change causes
        return optax.sgd(outer_step)

    def nesterov(outer_step, outer_decay=0.1):
        return optax.sgd(outer_step * outer_decay, 1.0 - outer_decay, nesterov=True)

    def delayed(outer_step, outer_decay=0.1):
        step = optax.scale_by_learning_rate(outer_step * outer_decay)
        return optax.chain(dj.delayed_nesterov(1.0 - outer_decay, period=n), step)

    def arm(waits, server, make, steps=config.steps, grid=rates):
        seconds = SECONDS if waits != ONE else SECONDS[:1]
        rounds = [dj.cluster.constant(each) for each in np.multiply(steps, seconds)]
        cluster = dj.cluster.Cluster(len(rounds), rounds)
        rule = protocols.hardsync() if waits == ALL else protocols.k_async(1)
        source, labels = Simulation(cluster, rule), {"islands": waits, "server": server}
        training = along(source, make, client=optax.adam, client_steps=steps)
        return Arm(training=training, labels=labels, grid=grid)

    equal = [int(config.steps * min(SECONDS) / each) for each in SECONDS]
    by_speed = [min(config.steps, max(FEWEST, steps)) for steps in equal]
    waiting = {"islands": ALL, "server": NESTEROV}
    at_its_steps = NESTEROV, DELAYED, DELAYED + BY_SPEED
    cost = functools.partial(Effect, metric="test_loss", size=percent(5))
    momentum = rates | {"outer_decay": Range(0.05, 1.0, off=1.0)}
    moving = [
        (ALL, NESTEROV, nesterov, config.steps),
        (NONE, NESTEROV, nesterov, config.steps),
        (NONE, DELAYED, delayed, config.steps),
        (NONE, DELAYED + BY_SPEED, delayed, by_speed),
    ]
    searched = moving if config.task == "toy" else []
    batch = config.steps * config.batch_size
    return Experiment(
        question="Why does outer momentum fail where islands wait for nobody?",
        task=named("task", config.task, TASKS)(batch_size=batch),
        arms=[
            *(arm(waits, SGD, sgd) for waits in (ALL, NONE)),
            *(arm(*each) for each in moving),
            *(arm(a, b + SEARCHED, c, d, momentum) for a, b, c, d in searched),
            arm(ONE, NESTEROV, nesterov),
        ],
        grid={"learning_rate": Range(1e-3, 0.1)},
        seeds=config.seeds,
        tuned_by="test_loss",
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        examples=config.rounds * n * batch,
        evaluations=16,
        also_at=[waiting],
        answer=[
            cost(against=waiting),
            cost(against=waiting, kept=waiting, where={"server": at_its_steps}),
            cost(against=waiting | {"islands": NONE}, where={"islands": NONE}),
        ],
        figures=[
            bars("test_loss", color="islands"),
            curves("test_loss", against="seconds", panels="islands"),
        ],
    )
