"""Claims about delays that grow, and records of `configs/dasgd.py`."""

from ml_collections import ConfigDict

from experiments import Published, analysis
from experiments.results.estimates import Measure
from experiments.results.measures import mean, tuned
from experiments.results.metrics import LargestStable

ROOT, HARMONIC, SLOWEST = "1/sqrt(t)", "1/t", "1/(t log t)"


def loss(law: str, first: float) -> Measure:
    """The loss at the end; nan if a seed ends higher than it began."""
    return mean("train_loss", law=law, first_step=first)


def left(law: str) -> Measure:
    """The largest share of the first loss that is left at the end, of all steps."""

    def measure(run):
        curves = analysis.where(run.curves, law=law)
        means = curves.groupby(["first_step", "update"]).train_loss.mean().unstack()
        return float((means.iloc[:, -1] / means.iloc[:, 0]).max(skipna=False))

    return measure


def published(config: ConfigDict) -> list[Published]:
    """The claims about delays that grow linearly with t."""
    return [
        Published(
            text="If delays grow linearly, steps of 1/(t log t) leave at most a tenth"
            " of the loss, from each first step",
            source="Zhou, Mertikopoulos, Bambos, Glynn, Ye (2021), arXiv:2107.02919,"
            " abstract",
            said="with tuned steps it converges in mean square even if delays grow at a"
            " polynomial rate",
            setting="theory",
            measure=left(SLOWEST),
            at_most=0.1,
            bound_is_ours=True,
            demonstration=True,
            tried="A theorem, on a quadratic of one curvature: a program that is right"
            " cannot contradict it. An outside reader refused it as a headline.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses at the end, and the largest stable first steps."""
    theory = "Largest stable first step of 1/t, in theory below 2.27"
    return {
        "Share of runs with 1/sqrt(t) that end higher": mean("ended_higher", law=ROOT),
        theory: tuned(LargestStable("first_step"), law=HARMONIC),
        "Loss, 1/(t log t), first step 0.5": loss(SLOWEST, 0.5),
    }
