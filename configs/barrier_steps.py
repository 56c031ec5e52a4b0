"""How far apart do two hundred workers get under each barrier?

Tasks take 1 + Exp(1) s, and 200 s are simulated, as in the paper of PSP (Wang et al.,
arXiv:1709.07772, whose figures these are): BSP lets nobody run ahead, SSP(4) nobody
more than 4 tasks, ASP everybody; pBSP and pSSP ask 4 or 10 workers drawn at random in
place of all. A barrier is as good as its workers are close together, for the time that
it takes. Logistic regression on breast cancer data, one example a task;
`barriers.py` has accuracies.

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
from experiments import Claim, Experiment, Run, Simulation, along, figures, tasks
from experiments.results.measures import mean, ratio


def get_config() -> ConfigDict:
    """The paper's simulation, and a sample of one and of four beside its ten."""
    return ConfigDict(
        dict(
            workers=200,
            samples=(1, 4, 10),  # of pBSP, workers that are asked
            bound=4,  # of SSP and pSSP, tasks that one may be ahead
            shift_seconds=1.0,  # of a task, to which an exponential time is added
            mean_seconds=1.0,  # of that
            seconds=200.0,  # simulated
            learning_rate=(0.0003, 0.001, 0.003),
            seeds=3,
        )
    )


@dataclasses.dataclass(frozen=True)
class Steps:
    """A figure: how many tasks the workers of each arm have done at the end."""

    name: str = "steps"
    text: str = "For each barrier the tasks that its workers have done, sorted."

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
            axis.plot(done, share, "-", color=styles[arm].color)
            middle = np.searchsorted(share, 50)
            axis.plot(done[middle], 50, styles[arm].marker, color=styles[arm].color)
        axis.set_xlabel("tasks done at the end of the simulated time")
        axis.set_ylabel("workers with no more (%)")
        return figure


def steps(trace: dj.cluster.Trace) -> np.ndarray:
    """Tasks that each worker has delivered, [workers]."""
    return np.bincount(trace.worker, minlength=trace.num_workers)


def experiment(config: ConfigDict) -> Experiment:
    """Seven barriers."""
    ssp, psp = dj.cluster.protocols.ssp, dj.cluster.protocols.psp
    service = dj.cluster.shifted_exponential(config.shift_seconds, config.mean_seconds)
    cluster = dj.cluster.Cluster(config.workers, service)
    most = max(config.samples)
    barriers = {
        "BSP": ssp(0),
        **{f"pBSP, {sample} asked": psp(sample, 0) for sample in config.samples[::-1]},
        "SSP": ssp(config.bound),
        f"pSSP, {most} asked": psp(most, config.bound),
        "ASP": ssp(math.inf),
    }
    simulated = {name: Simulation(cluster, own) for name, own in barriers.items()}

    @functools.cache
    def apart(barrier):
        """Standard deviation of the workers' tasks at the end, mean over seeds."""
        traces = [
            simulated[barrier].trace(seed, None, config.seconds)
            for seed in range(config.seeds)
        ]
        return float(np.mean([steps(trace).std() for trace in traces]))

    def tasks_each(barrier):
        return ratio(mean("updates", barrier=barrier), lambda found: config.workers)

    def done(barrier, about, within):
        text = f"Tasks of a worker, {barrier}"
        return Claim(text, tasks_each(barrier), about=about, within=within)

    def apart_by(barrier, **bounds):
        text = f"Standard deviation of the workers' tasks, {barrier}"
        return Claim(text, lambda found: apart(barrier), **bounds)

    def by_speed(found):
        return lambda barrier: tasks_each(barrier)(found)

    slowest = sum(1 / k for k in range(1, config.workers + 1))
    round_seconds = config.shift_seconds + config.mean_seconds * slowest
    return Experiment(
        question="How far apart do two hundred workers get under each barrier?",
        task=tasks.breast_cancer(batch_size=1, l2=0.1),
        arms=[
            (dict(barrier=name), along(source, optax.sgd))
            for name, source in simulated.items()
        ],
        grid={"learning_rate": config.learning_rate},
        seeds=config.seeds,
        tuned="learning_rate",
        seconds=config.seconds,
        claims=[
            *(
                apart_by(barrier, **bounds)
                for barrier, bounds in {
                    "BSP": dict(at_most=0.6),
                    f"pBSP, {most} asked": dict(at_most=0.8),
                    "ASP": dict(at_least=3.0),
                }.items()
            ),
            Claim(
                "The looser the barrier the more tasks are done",
                lambda found: sorted(barriers, key=by_speed(found)) == list(barriers),
            ),
            done("BSP", config.seconds / round_seconds, 1.5),
            done(
                "ASP",
                config.seconds / (config.shift_seconds + config.mean_seconds),
                1.5,
            ),
        ],
        figures=[
            Steps(),
            figures.bars("test_error"),
            figures.curves("train_loss", against="seconds"),
            figures.staleness(),
        ],
        notes=(
            "BSP does 28 tasks a worker in 200 s, with a standard deviation of 0.3;"
            " pBSP that asks 10 does 39 and is nearly as tight, 0.5; ASP 99, spread by"
            " 5: as published. A sample of 4 without slack does 45, and not as many as"
            " SSP with a slack of 4 (80), as the paper has it: there a waiting worker"
            " may draw anew, which it leaves open how often."
        ),
    )
