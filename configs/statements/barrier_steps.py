"""Claims of PSP's authors, and records of `configs/barrier_steps.py`."""

from ml_collections import ConfigDict

from experiments import Published, analysis, statements
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio

barrier_steps = statements.config_of(__file__)


def each(config: ConfigDict, barrier: str) -> Measure:
    """The mean number of tasks of a worker."""
    done = mean("updates", barrier=barrier)
    return lambda run: done(run) / config.workers


def apart(config: ConfigDict, barrier: str) -> Measure:
    """Standard deviation of the workers' tasks at the end, mean over seeds."""
    metric = barrier_steps.apart(config)

    def measure(run):
        rows = analysis.where(run.results, barrier=barrier)
        rows = metric.with_column(rows, run.curves)
        return float(rows[metric.name].mean())

    return measure


def published(config: ConfigDict) -> list[Published]:
    """The claims of the paper. The rates of BSP and ASP follow from the task's time."""
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


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: tasks of a worker, and how far apart workers are."""
    barriers = ("BSP", "pBSP, 10 asked", "pBSP, 4 asked", "SSP")
    return {
        **{
            f"Tasks of a worker, {barrier}": each(config, barrier)
            for barrier in barriers
        },
        "Standard deviation, ASP": apart(config, "ASP"),
    }
