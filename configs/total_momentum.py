"""Does YellowFin's closed loop keep the total momentum while delays grow?

Delay acts as momentum. The loop of YellowFin (Zhang and Mitliagkas, arXiv:1706.03471)
measures the total momentum and moves the explicit one until the total is on its target.
Beside it, a momentum kept at the target, and none: their totals on quadratics, and
errors on scikit-learn's digits, with step and target tuned.

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
LIMITS |= positive("gain", "rate", "learning_rate")


def get_config() -> ConfigDict:
    """Two quadratics and a network."""
    return ConfigDict(
        dict(
            delay=(0, 4, 8),  # updates
            target=0.6,  # of the total momentum on the quadratic
            digits_target=(0.5, 0.9),  # the same on digits
            gain=0.01,  # of the loop, per update
            rate=0.01,  # the step on the quadratic, of curvatures 0.4 to 1.6
            noise=0.3,  # standard deviation of a gradient's noise, in each direction
            directions=500,  # of the quadratic
            learning_rate=(0.003, 0.01, 0.03, 0.1, 0.3, 1.0),  # on digits
            updates=1000,
            seeds=5,
            tuning_seeds=3,  # that choose step and target, and are not reported
        )
    )


LOOP = "closed loop"


def experiment(config: ConfigDict) -> Experiment:
    """A program for each task and momentum."""
    max_delay = check_delays("delay", config.delay, config.updates)
    ways = {"none": {}, "kept": {"share": 1.0}, LOOP: {"gain": config.gain}}

    def steered(gain=0.0, share=0.0):
        """A loop, which measures alone if its gain is 0; a share of the target kept."""

        def make(learning_rate, target, delay):
            loop = dj.closed_loop_momentum(learning_rate, target, gain=gain)
            rule = optax.chain(loop, optax.trace(share * target))
            return dj.delayed(rule, delay, max_delay=max_delay, keep_params=True)

        return optimizer(make, seen=lambda memory: memory.inner_state[0])

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

    def shown(metric, title, task="no noise", **only):
        of = dict(fixed=False, color="momentum", title=title)
        return figures.over("delay", metric, only={"task": (task,)} | only, **of)

    return Experiment(
        question="Does a closed loop keep the total momentum while delays grow?",
        task=digits,
        arms=[arm(name, way) for name in compared for way in ways],
        grid={"delay": config.delay},
        seeds=config.seeds,
        tuned=("learning_rate", "target"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=50,
        measure={
            "applied_momentum": lambda model, task: model.state.momentum,
            "total_momentum": lambda model, task: model.state.loop.estimate,
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
        ],
    )
