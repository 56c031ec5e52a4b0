"""How fast must steps fall, if delays are half of the run?

At update t a gradient is t/2 updates late, as if its worker slowed down all the time.
For this DASGD (Zhou et al., arXiv:2107.02919) has steps that fall as 1 / (t log t): the
usual choice, 1 / sqrt(t), falls too slowly. 1 / t is between: in the time log t the
delay is constant, log 2, so that at a curvature lambda it is stable if

    first step * lambda < pi / (2 log 2) = 2.27

The loss is a quadratic of one curvature with noise. Each rule has several first steps.

    python -m experiments.main --config=configs/dasgd.py --workdir=runs/dasgd
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, configs, figures, percent, tasks

LIMITS = configs.at_least(0, "noise")
LIMITS |= configs.positive("first_step")


def get_config() -> ConfigDict:
    """The config: three rules of steps, each with four first steps."""
    return ConfigDict(
        dict(
            first_step=(0.5, 1.0, 2.0, 4.0),
            share=0.5,  # the delay, as a share of the updates so far
            curvature=1.0,  # of every direction
            directions=8,
            noise=0.1,  # standard deviation of a gradient's noise, in each direction
            updates=8000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each rule, with a history for the longest delay."""
    if not (
        0.0 < config.share < 1.0 and min((*config.first_step, config.curvature)) > 0.0
    ):
        raise ValueError(
            "config.share must be in (0, 1), and config.first_step and"
            " config.curvature must be positive."
        )
    longest = int(config.share * config.updates)
    max_delay = configs.check_delays("share", (longest,), config.updates)

    def root(first_step):
        return lambda step: first_step / jnp.sqrt(step + 1.0)

    def harmonic(logarithms):
        return lambda first: dj.step_sizes.harmonic(first, logarithms=logarithms)

    laws = {"1/sqrt(t)": root, "1/t": harmonic(0), "1/(t log t)": harmonic(1)}

    def late(first_step, law):
        return dj.delayed(
            dj.step_sizes.dasgd(law(first_step)),
            lambda step: jnp.floor(config.share * step),
            max_delay=max_delay,
        )

    which = "Which steps converge, if delays are half of the run?"
    same = (config.curvature,) * config.directions
    return Experiment(
        question="How fast must steps fall, if delays are half of the run?",
        task=tasks.quadratic(same, noise=config.noise),
        training=late,
        grid={"first_step": config.first_step, "law": laws},
        seeds=config.seeds,
        updates=config.updates,
        evaluations=200,
        answer=Effect(
            metric="train_loss",
            against={"law": "1/(t log t)"},
            size=percent(10),
            name="loss at the end",
        ),
        figures=[
            figures.over(
                "first_step", "train_loss", fixed=False, color="law", title=which
            ),
            figures.curves("train_loss", panels="first_step", color="law"),
        ],
    )
