"""Does YellowFin's closed loop keep the total momentum while delays grow?

Delay acts as momentum. The loop of YellowFin (Zhang and Mitliagkas, arXiv:1706.03471)
measures the total momentum, and changes the explicit momentum until the total is on its
target. It is compared with a momentum fixed at the target, and with none: by the total
momentum on quadratics, and on scikit-learn's digits by the time to a training loss, for
which step and target are searched. On digits Adam and YellowFin are trained too;
YellowFin clips gradients as its released code does.

    python -m experiments.main --config=configs/total_momentum.py --workdir=runs/total
"""

import functools

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, figures, optimizer
from experiments.configs import at_least, check_delays, positive
from experiments.results.metrics import TimeTo
from experiments.results.sizes import amount, points
from experiments.tasks import digits_mlp, quadratic

SMALL = {"updates": 300, "loss": 1.0, "delay": (0, 8)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(0, "delay", "target", "noise") | positive("gain", "rate", "loss")
LIMITS |= positive("tolerance")


def get_config() -> ConfigDict:
    """The config: two quadratics and a network."""
    return ConfigDict(
        dict(
            delay=(0, 4, 8),  # updates
            target=0.6,  # of the total momentum on the quadratic
            gain=0.01,  # of the loop, per update
            rate=0.01,  # the step on the quadratic, of curvatures 0.4 to 1.6
            noise=0.3,  # standard deviation of a gradient's noise, in each direction
            directions=500,  # of the quadratic
            loss=0.1,  # the training loss to reach on digits, nats
            updates=3000,
            seeds=5,
            tolerance=0.1,  # tolerance of the search, as a share of the updates
        )
    )


LOOP, YELLOWFIN, ADAM = "closed loop", "YellowFin", "Adam"


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each task and momentum."""
    max_delay = check_delays("delay", config.delay, config.updates)
    late = functools.partial(dj.delayed, max_delay=max_delay, keep_params=True)

    def yellowfin(factor, delay):
        measured = dict(closed_loop=True, gain=config.gain)
        return late(dj.yellowfin(factor=factor, clip=True, **measured), delay)

    def adam(adam_rate, adam_decay, delay):
        return late(optax.adam(adam_rate, b1=1.0 - adam_decay), delay)

    def steered(learning_rate, decay, delay, *, gain=0.0, share=0.0):
        """A loop, which only measures if its gain is 0, and `share` of the target."""
        loop = dj.closed_loop_momentum(learning_rate, 1.0 - decay, gain=gain)
        return late(optax.chain(loop, optax.trace(share * (1.0 - decay))), delay)

    numbers = {"none": {}, "kept": {"share": 1.0}, LOOP: {"gain": config.gain}}
    ways = {way: functools.partial(steered, **numbers[way]) for way in numbers}
    curvatures = np.linspace(0.4, 1.6, config.directions).tolist()
    levels = {"no noise": 0.0, "noise": config.noise}
    tasks = {name: quadratic(curvatures, noise=levels[name]) for name in levels}
    tasks["digits"] = digits_mlp(width=16)
    fixed = dict(decay=(1.0 - config.target,), learning_rate=(config.rate,))
    tuned = dict(factor=Range(0.03, 3.0), adam_rate=Range(0.0003, 0.1))
    tuned |= dict(adam_decay=Range(0.1, 1.0, off=1.0), learning_rate=Range(0.003, 1.0))
    tuned |= dict(decay=Range(0.1, 1.0, off=1.0))  # 1 - target

    def momenta(memory):  # the applied one, and the total; none of Adam
        loop = optax.tree.get(memory, "loop")
        return loop and (optax.tree.get(memory, "momentum"), loop.estimate)

    def arm(task, momentum, make):
        training = optimizer(make, seen=momenta)
        labels = dict(task=task, momentum=momentum)
        digits = {"decay": (1.0,)} if momentum == "none" else {}
        grid = digits if task == "digits" else fixed
        return Arm(training=training, labels=labels, task=tasks[task], grid=grid)

    def measured(i):
        return lambda model, task: model.state[i] if model.state else np.float32(np.nan)

    def shown(metric, title, task="no noise", **only):
        of = dict(fixed=False, color="momentum", title=title)
        return figures.over("delay", metric, only={"task": (task,)} | only, **of)

    def effect(metric, on, task, against, size):
        name = f"{metric.replace('_', ' ')} on {on}"
        where = {"task": task}
        return Effect(metric=metric, name=name, against=against, size=size, where=where)

    rivals = {"momentum": (YELLOWFIN, ADAM)}
    return Experiment(
        question="Does a closed loop keep the total momentum while delays grow?",
        task=tasks["digits"],
        arms=[
            *(arm(name, *way) for name in tasks for way in ways.items()),
            arm("digits", YELLOWFIN, yellowfin),
            arm("digits", ADAM, adam),
        ],
        grid={"delay": config.delay, **tuned},
        seeds=config.seeds,
        tuned_by=TimeTo("train_loss", config.loss, along="update"),
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        evaluations=50,
        metrics={"applied_momentum": measured(0), "total_momentum": measured(1)},
        answer=[
            effect(
                "total_momentum", "a quadratic", "no noise", {"delay": 0}, amount(0.05)
            ),
            effect("test_error", "digits", "digits", {"momentum": "none"}, points(1)),
        ],
        figures=[
            shown("total_momentum", "Does the total stay on its target?"),
            shown("applied_momentum", "What does the loop apply?", momentum=(LOOP,)),
            shown("test_error", "What does the loop gain on digits?", "digits"),
            figures.curves(against="update", target=config.loss, only=rivals),
        ],
    )
