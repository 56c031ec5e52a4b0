"""How far apart do two hundred workers get under each barrier?

Tasks take 1 + Exp(1) s, and 200 s are simulated, as in the paper of PSP (Wang et al.,
arXiv:1709.07772). With BSP no worker runs ahead, with SSP(4) at most 4 tasks, with ASP
without a limit. pBSP and pSSP ask a few workers, drawn at random, in place of all, and
a waiting worker keeps its sample. In one arm it draws a new sample every 0.1 s: the
paper does not say how often. A barrier is good if its workers stay close together and
do many tasks. Each task is one example of logistic regression on breast cancer data;
`barriers.py` compares the learning.

    python -m experiments.main --config=configs/barrier_steps.py \
        --workdir=runs/barrier_steps
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Effect, Experiment, Run, Simulation, along, figures, tasks
from experiments.configs import at_least, positive
from experiments.results.metrics import Computed
from experiments.results.sizes import amount, percent

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "shift_seconds", "mean_seconds", "poll_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """The config: the paper's simulation, with samples of 1 and 4 beside its 10."""
    return ConfigDict(
        dict(
            workers=200,
            samples=(1, 4, 10),  # numbers of workers that pBSP asks
            bound=4,  # tasks that a worker may be ahead under SSP and pSSP
            shift_seconds=1.0,  # the constant part of the time of a task
            mean_seconds=1.0,  # mean of the exponential part
            poll_seconds=0.1,  # until a waiting worker draws again, in one arm
            seconds=200.0,  # simulated
            learning_rate=0.001,
            seeds=5,
        )
    )


def steps(trace: dj.cluster.Trace) -> np.ndarray:
    """The number of tasks that each worker has delivered, [workers]."""
    return np.bincount(trace.worker, minlength=trace.num_workers)


def simulations(config: ConfigDict) -> dict[str, Simulation]:
    """{name: simulation} of eight barriers, the strictest first."""
    ssp, psp = dj.cluster.protocols.ssp, dj.cluster.protocols.psp
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)
    most = max(config.samples)
    barriers = {
        "BSP": ssp(0),
        **{f"pBSP, {sample} asked": psp(sample, 0) for sample in config.samples[::-1]},
        "pBSP, 4 asked anew": psp(4, 0, poll_seconds=config.poll_seconds),
        "SSP": ssp(config.bound),
        f"pSSP, {most} asked": psp(most, config.bound),
        "ASP": ssp(math.inf),
    }
    return {name: Simulation(cluster, barrier) for name, barrier in barriers.items()}


@dataclasses.dataclass(frozen=True)
class Steps:
    """A figure: how many tasks the workers of each arm have done at the end."""

    name: str = "steps"
    caption: str = "The number of tasks that each worker has done, for each barrier."

    def draw(self, run: Run) -> Any:
        """Draws the share of workers with at most x tasks, a curve for each barrier."""
        from experiments.figures import palette, sheets  # Matplotlib, when it draws

        styles = palette.styles(list(run.traces))
        lines = palette.handles(styles, dashes=False)
        figure, (axis,) = sheets.sheet(
            "How many tasks has each worker done?", [""], lines
        )
        for arm, trace in run.traces.items():
            done = np.sort(steps(trace))
            share = np.linspace(0, 100, len(done))
            axis.plot(done, share, color=styles[arm].color, drawstyle="steps-post")
            middle = np.searchsorted(share, 50)
            axis.plot(done[middle], 50, styles[arm].marker, color=styles[arm].color)
        axis.set_xlabel("tasks done at the end of the simulated time")
        axis.set_ylabel("workers with no more (%)")
        return figure


def apart(config: ConfigDict) -> Computed:
    """A metric: the standard deviation of the workers' numbers of tasks at the end."""
    simulated = simulations(config)

    @functools.cache
    def deviation(barrier, seed):
        return steps(simulated[barrier].trace(seed, None, config.seconds)).std()

    return Computed("standard_deviation_of_tasks", deviation)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: an arm for each barrier, at one step size."""
    bsp = {"barrier": "BSP"}
    return Experiment(
        question="How far apart do two hundred workers get under each barrier?",
        task=tasks.breast_cancer(batch_size=1, l2=0.1),
        arms=[
            (dict(barrier=name), along(source, optax.sgd))
            for name, source in simulations(config).items()
        ],
        grid={"learning_rate": (config.learning_rate,)},
        seeds=config.seeds,
        seconds=config.seconds,
        answer=[
            Effect(metric=apart(config), against=bsp, size=amount(1, "task")),
            Effect(metric="updates", against=bsp, size=percent(10), name="tasks done"),
        ],
        figures=[Steps(), figures.staleness()],
    )
