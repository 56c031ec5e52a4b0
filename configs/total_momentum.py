"""Does YellowFin's closed loop keep the total momentum while delays grow?

Delay acts as momentum. The loop of YellowFin (Zhang and Mitliagkas, arXiv:1706.03471)
measures the total momentum, and changes the explicit momentum until the total is on its
target. It is compared with a momentum that is fixed at the target, and with none: by
the total momentum on quadratics, and by the error on scikit-learn's digits, with step
and target tuned. On digits YellowFin, with a factor of its step tuned, and Adam are
trained too, equally late.

    python -m experiments.main --config=configs/total_momentum.py --workdir=runs/total
"""

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, amount, figures, optimizer, points
from experiments.configs import at_least, check_delays, positive
from experiments.tasks import digits_mlp, quadratic

LIMITS = at_least(0, "delay", "target", "noise")
LIMITS |= positive("gain", "rate", "learning_rate", "loss")
LIMITS |= positive("factor", "adam_rate", "adam_decay")


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


def momenta(state):
    """The applied momentum and the total momentum of an optimizer with a loop."""
    return state.momentum, state.loop.estimate


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each task and momentum."""
    max_delay = check_delays("delay", config.delay, config.updates)
    ways = {"none": {}, "kept": {"share": 1.0}, LOOP: {"gain": config.gain}}

    def late(rule, delay):
        return dj.delayed(rule, delay, max_delay=max_delay, keep_params=True)

    def yellowfin(factor, delay):
        tuner = dj.yellowfin(factor=factor, closed_loop=True, gain=config.gain)
        return late(tuner, delay)

    def adam(adam_rate, adam_decay, delay):
        return late(optax.adam(adam_rate, b1=1.0 - adam_decay), delay)

    def steered(gain=0.0, share=0.0):
        """A loop, which only measures if its gain is 0, and `share` of the target."""

        def make(learning_rate, target, delay):
            loop = dj.closed_loop_momentum(learning_rate, target, gain=gain)
            return late(optax.chain(loop, optax.trace(share * target)), delay)

        return optimizer(make, seen=lambda memory: momenta(memory.inner_state[0]))

    curvatures = np.linspace(0.4, 1.6, config.directions).tolist()
    digits = digits_mlp(width=16)
    fixed = dict(target=(config.target,), learning_rate=(config.rate,))
    tuned = dict(target=config.digits_target, learning_rate=config.learning_rate)
    compared = {
        "no noise": dict(task=quadratic(curvatures), grid=fixed),
        "noise": dict(task=quadratic(curvatures, noise=config.noise), grid=fixed),
        "digits": dict(task=digits, grid=tuned),
    }

    def arm(name, way):
        labels = dict(task=name, momentum=way)
        return Arm(training=steered(**ways[way]), labels=labels, **compared[name])

    def rival(name, make, seen, *axes):
        labels, grid = dict(task="digits", momentum=name), {k: config[k] for k in axes}
        return Arm(training=optimizer(make, seen=seen), labels=labels, grid=grid)

    def shown(metric, title, task="no noise", **only):
        of = dict(fixed=False, color="momentum", title=title)
        return figures.over("delay", metric, only={"task": (task,)} | only, **of)

    no_loop = np.full(2, np.nan, np.float32)  # of Adam
    rivals = {"momentum": (YELLOWFIN, ADAM)}
    return Experiment(
        question="Does a closed loop keep the total momentum while delays grow?",
        task=digits,
        arms=[
            *(arm(name, way) for name in compared for way in ways),
            rival(YELLOWFIN, yellowfin, lambda m: momenta(m.inner_state), "factor"),
            rival(ADAM, adam, lambda m: (), "adam_rate", "adam_decay"),
        ],
        grid={"delay": config.delay},
        seeds=config.seeds,
        tuned=("learning_rate", "target", "factor", "adam_rate", "adam_decay"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=50,
        measure={
            "applied_momentum": lambda model, task: (model.state or no_loop)[0],
            "total_momentum": lambda model, task: (model.state or no_loop)[1],
        },
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
