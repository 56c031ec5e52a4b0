"""How fast must steps fall, if delays are half of the run?

At update t a gradient is t/2 updates late, as of a worker that slows down all the time.
DASGD (Zhou et al., arXiv:2107.02919) asks then for steps that fall as 1 / (t log t):
1 / sqrt(t), the usual choice, falls too slowly. 1 / t is between: in the time log t the
delay is constant, log 2, so at a curvature lambda it is stable while

    first step * lambda < pi / (2 log 2) = 2.27

A quadratic of one curvature with noise; every rule of steps has several first steps.

    python -m experiments.main --config=configs/dasgd.py --workdir=runs/dasgd
"""

import math

import jax.numpy as jnp
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, configs, figures, tasks
from experiments.results import analysis
from experiments.results.estimates import Measure
from experiments.results.measures import between, largest_stable, mean, ratio
from experiments.results.tables import Found

LIMITS = configs.at_least(0, "noise")
LIMITS |= configs.positive("first_step")


def get_config() -> ConfigDict:
    """Three rules of steps, each with four first steps."""
    return ConfigDict(
        dict(
            first_step=(0.5, 1.0, 2.0, 4.0),
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
    if not (
        0.0 < config.share < 1.0 and min((*config.first_step, config.curvature)) > 0.0
    ):
        raise ValueError(
            "config.share must be in (0, 1); first_step, curvature positive."
        )
    longest = int(config.share * config.updates)
    max_delay = configs.check_delays("share", (longest,), config.updates)

    def root(first_step):
        return lambda step: first_step / jnp.sqrt(step + 1.0)

    def harmonic(logarithms):
        return lambda first: dj.step_sizes.harmonic(first, logarithms=logarithms)

    laws = {"1/sqrt(t)": root, "1/t": harmonic(0), "1/(t log t)": harmonic(1)}

    def late(first_step, law):
        rates = [make(first_step) for make in laws.values()]

        def rate(step):
            return jnp.stack([own(step) for own in rates])[law]

        return dj.delayed(
            dj.step_sizes.dasgd(rate),
            lambda step: jnp.floor(config.share * step),
            max_delay=max_delay,
        )

    which = "Which steps converge, if delays are half of the run?"
    same = (config.curvature,) * config.directions
    return Experiment(
        question="How fast must steps fall, if delays are half of the run?",
        task=tasks.quadratic(same, noise=config.noise),
        training=late,
        grid={
            "first_step": config.first_step,
            "law": dict(zip(laws, range(3), strict=True)),
        },
        seeds=config.seeds,
        updates=config.updates,
        evaluations=200,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "first_step", "train_loss", fixed=False, color="law", title=which
            ),
            figures.curves("train_loss", panels="first_step", color="law"),
        ],
    )


ROOT, HARMONIC, SLOWEST = "1/sqrt(t)", "1/t", "1/(t log t)"


def loss(law: str, first: float) -> Measure:
    """The loss at the end; nan where a seed ends higher."""
    return mean("train_loss", law=law, first_step=first)


def stable(law: str) -> Measure:
    """The largest first step up to which no seed ends higher."""
    return largest_stable("first_step", law=law)


def left(law: str) -> Measure:
    """The largest share of the first loss that is left at the end, of all steps."""

    def measure(found):
        curves = analysis.where(found.curves, law=law)
        means = curves.groupby(["first_step", "update"]).train_loss.mean().unstack()
        return float((means.iloc[:, -1] / means.iloc[:, 0]).max(skipna=False))

    return measure


def published(config: ConfigDict) -> list[Published]:
    """Of delays that grow linearly with t."""
    del config
    return [
        Published(
            text="With steps of 1/(t log t) training converges, from each first step:"
            " at most a tenth of the loss is left",
            source="Zhou, Mertikopoulos, Bambos, Glynn, Ye (2021), arXiv:2107.02919",
            said="it converges with steps of 1/(t log t) if delays are of order t",
            setting="theory",
            measure=left(SLOWEST),
            at_most=0.1,
            bound_is_ours=True,
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses at the end, and the first steps up to which the rules are stable."""
    del config
    share = mean("ended_higher", law=ROOT)
    theory = "Largest stable first step of 1/t, in theory below 2.27"
    return [
        Record("Share of runs with 1/sqrt(t) that end higher", share, 1.0, 0.0),
        Record(theory, stable(HARMONIC), 2.0, 0.0),
        Record("Loss, 1/t, first step 0.5", loss(HARMONIC, 0.5), 6.207e-6, 1.3e-6),
        Record("Loss, 1/(t log t), first step 0.5", loss(SLOWEST, 0.5), 0.1108, 0.0026),
        Record("Loss, 1/(t log t), first step 4", loss(SLOWEST, 4.0), 2.222e-5, 5.9e-6),
    ]


def answer(found: Found) -> str:
    """Up to which first step each rule is stable, and what the logarithm costs."""
    first = sorted(found.results["first_step"].unique())
    bounds = {law: stable(law)(found) for law in (ROOT, HARMONIC, SLOWEST)}
    texts = [
        f"{'none' if math.isnan(bound) else f'up to {bound:g}'} for {law}"
        for law, bound in bounds.items()
    ]
    times = ratio(loss(SLOWEST, first[0]), loss(HARMONIC, first[0]))
    return (
        f"First steps of {first[0]:g} to {first[-1]:g} with which no run ends higher"
        " than it began:"
        f" {', '.join(texts)}. With {first[0]:g} the loss of {SLOWEST} ends at"
        f" {between(times, found, form='.3g')} times the loss of {HARMONIC}."
    )
