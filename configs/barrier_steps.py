"""How far apart do two hundred workers get under each barrier?

Tasks take 1 + Exp(1) s, and 200 s are simulated, as in the paper of PSP (Wang et al.,
arXiv:1709.07772, whose figures these are): BSP lets nobody run ahead, SSP(4) nobody
more than 4 tasks, ASP everybody; pBSP and pSSP ask 4 or 10 workers drawn at random in
place of all, and a waiting worker keeps its sample. In one arm it draws anew every
0.1 s: the paper leaves open how often. A barrier is good if its workers stay close
together and do many tasks. Logistic regression on breast cancer data, one example a
task, gives the workers something to do; `barriers.py` has the learning.

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
from experiments import (
    Experiment,
    Published,
    Record,
    Run,
    Simulation,
    along,
    figures,
    tasks,
)
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure, estimate
from experiments.results.measures import mean, ratio
from experiments.results.tables import Found

LIMITS = at_least(1, "workers")
LIMITS |= at_least(0, "shift_seconds", "mean_seconds", "poll_seconds")
LIMITS |= positive("seconds", "learning_rate")


def get_config() -> ConfigDict:
    """The paper's simulation, and a sample of one and of four beside its ten."""
    return ConfigDict(
        dict(
            workers=200,
            samples=(1, 4, 10),  # of pBSP, workers that are asked
            bound=4,  # of SSP and pSSP, tasks that one may be ahead
            shift_seconds=1.0,  # of a task, to which an exponential time is added
            mean_seconds=1.0,  # of that
            poll_seconds=0.1,  # until a waiting worker draws anew, in one arm
            seconds=200.0,  # simulated
            learning_rate=0.001,
            seeds=5,
        )
    )


@dataclasses.dataclass(frozen=True)
class Steps:
    """A figure: how many tasks the workers of each arm have done at the end."""

    name: str = "steps"
    caption: str = "For each barrier the tasks that its workers have done, sorted."

    def draw(self, run: Run) -> Any:
        """Shares of the workers that have done so many tasks, a curve a barrier."""
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


def steps(trace: dj.cluster.Trace) -> np.ndarray:
    """Tasks that each worker has delivered, [workers]."""
    return np.bincount(trace.worker, minlength=trace.num_workers)


def simulations(config: ConfigDict) -> dict[str, Simulation]:
    """Eight barriers, from the strictest."""
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
    return {name: Simulation(cluster, own) for name, own in barriers.items()}


def experiment(config: ConfigDict) -> Experiment:
    """One step size: what is asked is when tasks are done."""
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
        answer=functools.partial(answer, config),
        published=published(config),
        records=records(config),
        figures=[Steps(), figures.staleness()],
    )


def each(config: ConfigDict, barrier: str) -> Measure:
    """Tasks of a worker."""
    return ratio(mean("updates", barrier=barrier), lambda found: config.workers)


def apart(config: ConfigDict, barrier: str) -> Measure:
    """Standard deviation of the workers' tasks at the end, mean over seeds."""
    simulated = simulations(config)[barrier]

    @functools.cache
    def of(seed):
        return steps(simulated.trace(seed, None, config.seconds)).std()

    return lambda found: float(np.mean([of(s) for s in set(found.results["seed"])]))


def published(config: ConfigDict) -> list[Published]:
    """The paper's simulation. The rates of BSP and ASP follow from the task's time."""
    bsp, ten, asp = (apart(config, b) for b in ("BSP", "pBSP, 10 asked", "ASP"))
    wang = dict(
        source="Wang, Catterall, Mortier (2017), arXiv:1709.07772, the simulation",
        setting="200 workers, 200 s, samples of 0 to 64",
        bound_is_ours=True,
    )
    return [
        Published(
            text="pBSP that asks 10 keeps workers almost as close together as BSP: its"
            " standard deviation is a tenth of the way from BSP to ASP, or less",
            said="almost as tight as BSP",
            measure=lambda f: (ten(f) - bsp(f)) / (asp(f) - bsp(f)),
            at_most=0.1,
            **wang,
        ),
        Published(
            text="pBSP that asks 4 does about as many tasks as SSP with a slack of 4",
            said="about SSP",
            measure=ratio(each(config, "pBSP, 4 asked"), each(config, "SSP")),
            at_least=0.9,
            at_most=1.1,
            **wang,
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Tasks of a worker, and how far apart workers are."""
    return [
        *(
            Record(f"Tasks of a worker, {barrier}", each(config, barrier), *expected)
            for barrier, expected in {
                "BSP": (28.71, 0.41),
                "pBSP, 10 asked": (40.3, 0.32),
                "pBSP, 4 asked": (46.29, 0.48),
                "SSP": (82.59, 0.79),
            }.items()
        ),
        Record("Standard deviation, ASP", apart(config, "ASP"), 4.896, 0.081),
    ]


def answer(config: ConfigDict, found: Found) -> str:
    """Tasks and their standard deviation under four barriers."""
    parts = []
    for barrier in ("BSP", "pBSP, 10 asked", "SSP", "ASP"):
        low, high = estimate(apart(config, barrier), found).interval()
        parts.append(
            f"{each(config, barrier)(found):.0f} tasks with a standard deviation of"
            f" {low:.2f} to {high:.2f} under {barrier}"
        )
    return (
        f"In {config.seconds:g} s a worker does {', '.join(parts)}. The deviation is"
        " over the workers of a run, its interval over runs."
    )
