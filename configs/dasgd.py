"""How fast must steps fall, if delays are half of the run?

At update t a gradient is t/2 updates late, as of a worker that slows down all the time.
DASGD (Zhou et al., arXiv:2107.02919) asks then for steps that fall as 1 / (t log t):
1 / sqrt(t), the usual choice, falls too slowly. 1 / t is between: in the time log t the
delay is constant, log 2, so at a curvature lambda it is stable while

    scale * lambda < pi / (2 log 2) = 2.27

A quadratic of one curvature with noise; every rule of steps has several first steps.

    python -m experiments.main --config=configs/dasgd.py --workdir=runs/dasgd
"""

import math

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results.measures import largest_stable, mean


def get_config() -> ConfigDict:
    """Three rules of steps, each with four first steps."""
    return ConfigDict(
        dict(
            scale=(0.5, 1.0, 2.0, 4.0),  # the first step
            share=0.5,  # of the updates so far: the delay
            curvature=1.0,  # of every direction
            directions=8,
            noise=0.1,  # standard deviation of a gradient's noise, in each direction
            updates=8000,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """One program; its history is as deep as the share of the run."""
    if not 0.0 < config.share < 1.0:
        raise ValueError(f"config.share must be in (0, 1), got {config.share}.")
    if not min((*config.scale, config.curvature)) > 0.0:
        raise ValueError(
            "config.scale and config.curvature must be positive, got"
            f" {config.scale} and {config.curvature}."
        )
    longest = int(config.share * config.updates)
    max_delay = configs.check_delays("share", (longest,), config.updates)

    def root(scale):
        return lambda step: scale / jnp.sqrt(step + 1.0)

    def harmonic(logarithms):
        return lambda scale: dj.step_sizes.harmonic(scale, logarithms=logarithms)

    laws = {"1/sqrt(t)": root, "1/t": harmonic(0), "1/(t log t)": harmonic(1)}

    def late(scale, law):
        rates = [make(scale) for make in laws.values()]

        def rate(step):
            return jnp.stack([own(step) for own in rates])[law]

        return dj.delayed(
            dj.step_sizes.dasgd(rate),
            lambda step: jnp.floor(config.share * step),
            max_delay=max_delay,
        )

    limit = math.pi / (2.0 * math.log(1.0 / (1.0 - config.share))) / config.curvature

    def loss(law, scale, at_most):
        measure = mean("train_loss", law=law, scale=scale)
        text = f"Loss at the end, {law}, first step {scale}"
        return Claim(text, measure, at_most=at_most)

    return Experiment(
        question="How fast must steps fall, if delays are half of the run?",
        task=tasks.quadratic(
            (config.curvature,) * config.directions, noise=config.noise
        ),
        training=late,
        grid={
            "scale": config.scale,
            "law": {name: number for number, name in enumerate(laws)},
        },
        seeds=config.seeds,
        updates=config.updates,
        evaluations=200,
        claims=[
            Claim(
                "Share of runs with 1/sqrt(t) that diverge",
                mean("diverged", law="1/sqrt(t)"),
                at_least=1.0,
            ),
            Claim(
                "Share of runs with 1/(t log t) that diverge",
                mean("diverged", law="1/(t log t)"),
                at_most=0.0,
            ),
            Claim(
                "Largest stable first step of 1/t",
                largest_stable("scale", law="1/t"),
                about=max(s for s in config.scale if s < limit),
                within=1e-6,
            ),
            loss("1/(t log t)", 0.5, 0.2),
            loss("1/(t log t)", 4.0, 1e-4),
            loss("1/t", 0.5, 5e-5),
        ],
        figures=[
            figures.curves(
                "train_loss",
                panels="scale",
                color="law",
                title="Which steps converge, if delays are half of the run?",
            ),
            figures.over(
                "scale",
                "train_loss",
                fixed=False,
                color="law",
                title="Which steps converge, if delays are half of the run?",
                x_label="first step",
            ),
        ],
        notes=(
            "1/sqrt(t) diverges with each first step, and 1/(t log t) converges with"
            " each. With first steps of 0.5 and 1, 1/t ends with the smaller loss, and"
            " 1/(t log t) is slow: with 0.5 its loss falls from 4 to 0.25 within 40"
            " updates, and to 0.11 in all others. With a first step of 2, near the"
            " limit of 2.27, the loss of 1/t swings and hardly falls; beyond, it grows."
            " So the logarithm helps where the first step may be too large."
        ),
    )
