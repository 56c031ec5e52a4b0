"""Does YellowFin's closed loop keep the total momentum while delays grow?

Delay acts as momentum. The loop of YellowFin (Zhang and Mitliagkas, arXiv:1706.03471)
measures the total momentum, and changes the explicit momentum until the total is on its
target. It is compared with a momentum fixed at the target, and with none: by the total
momentum on quadratics, and by the error on scikit-learn's digits, with step and target
tuned. On digits also YellowFin, with a tuned factor of its step, and Adam are trained.

    python -m experiments.main --config=configs/total_momentum.py --workdir=runs/total
"""

import functools

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, amount, figures, optimizer, points
from experiments.configs import at_least, check_delays, positive
from experiments.tasks import digits_mlp, quadratic

LIMITS = at_least(0, "delay", "target", "noise") | positive("gain", "rate", "loss")
LIMITS |= positive("learning_rate", "factor", "adam_rate", "adam_decay")


def get_config() -> ConfigDict:
    """The config: two quadratics and a network."""
    return ConfigDict(
        dict(
            delay=(0, 4, 8),  # updates
            target=0.6,  # of the total momentum on the quadratic
            digits_target=(0.5, 0.9),  # of the total momentum on digits
            gain=0.01,  # of the loop, per update
            rate=0.01,  # the step on the quadratic, of curvatures 0.4 to 1.6
            noise=0.3,  # standard deviation of a gradient's noise, in each direction
            directions=500,  # of the quadratic
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),  # on digits
            factor=(0.03, 0.1, 0.3, 1.0, 3.0),  # of YellowFin's step
            adam_rate=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
            adam_decay=(0.1, 0.5, 1.0),  # 1 - beta_1
            loss=0.2,  # the training loss to reach on digits, nats
            updates=1000,
            seeds=5,
            tuning_seeds=3,  # seeds that choose step and target; not reported
        )
    )


LOOP, YELLOWFIN, ADAM = "closed loop", "YellowFin", "Adam"


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each task and momentum."""
    max_delay = check_delays("delay", config.delay, config.updates)
    late = functools.partial(dj.delayed, max_delay=max_delay, keep_params=True)

    def yellowfin(factor, delay):
        tuner = dj.yellowfin(factor=factor, closed_loop=True, gain=config.gain)
        return late(tuner, delay)

    def adam(adam_rate, adam_decay, delay):
        return late(optax.adam(adam_rate, b1=1.0 - adam_decay), delay)

    def steered(learning_rate, target, delay, *, gain=0.0, share=0.0):
        """A loop, which only measures if its gain is 0, and `share` of the target."""
        loop = dj.closed_loop_momentum(learning_rate, target, gain=gain)
        return late(optax.chain(loop, optax.trace(share * target)), delay)

    numbers = {"none": {}, "kept": {"share": 1.0}, LOOP: {"gain": config.gain}}
    ways = {way: functools.partial(steered, **numbers[way]) for way in numbers}
    curvatures = np.linspace(0.4, 1.6, config.directions).tolist()
    levels = {"no noise": 0.0, "noise": config.noise}
    tasks = {name: quadratic(curvatures, noise=levels[name]) for name in levels}
    tasks["digits"] = digits_mlp(width=16)
    tuned = dict(learning_rate=config.learning_rate, target=config.digits_target)
    tuned |= {axis: config[axis] for axis in ("factor", "adam_rate", "adam_decay")}
    fixed = dict(target=(config.target,), learning_rate=(config.rate,))

    def momenta(memory):  # the applied one, and the total; none of Adam
        loop = optax.tree.get(memory, "loop")
        return loop and (optax.tree.get(memory, "momentum"), loop.estimate)

    def arm(task, momentum, make):
        training = optimizer(make, seen=momenta)
        labels = dict(task=task, momentum=momentum)
        grid = {} if task == "digits" else fixed
        return Arm(training=training, labels=labels, task=tasks[task], grid=grid)

    def measured(i):
        return lambda model, task: model.state[i] if model.state else np.float32(np.nan)

    def shown(metric, title, task="no noise", **only):
        of = dict(fixed=False, color="momentum", title=title)
        return figures.over("delay", metric, only={"task": (task,)} | only, **of)

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
        tuned=[*tuned],
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=50,
        metrics={"applied_momentum": measured(0), "total_momentum": measured(1)},
        answer=[
            Effect(
                metric="total_momentum",
                against={"delay": 0},
                size=amount(0.05),
                where={"task": "no noise"},
                name="total momentum on a quadratic",
            ),
            Effect(
                metric="test_error",
                against={"momentum": "none"},
                size=points(1),
                where={"task": "digits"},
                name="test error on digits",
            ),
        ],
        figures=[
            shown("total_momentum", "Does the total stay on its target?"),
            shown("applied_momentum", "What does the loop apply?", momentum=(LOOP,)),
            shown("test_error", "What does the loop gain on digits?", "digits"),
            figures.curves(against="update", target=config.loss, only=rivals),
        ],
    )
