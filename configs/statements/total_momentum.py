"""Claims of Zhang and Mitliagkas about the closed loop, and records."""

from ml_collections import ConfigDict

from experiments import claims, statements
from experiments.results import analysis
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, tuned

LOOP = statements.config_of(__file__).LOOP


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract about YellowFin."""
    late = max(config.delay)
    return [
        Published(
            text=f"With gradients {late} updates late YellowFin with the closed loop"
            " needs fewer updates to a training loss than Adam",
            source="Zhang and Mitliagkas (2017), arXiv:1706.03471, abstract",
            said="up to 2.69 times fewer iterations than Adam in asynchronous settings",
            setting="ResNets and LSTMs: images, language models, parsing; 16 workers",
            tried="The runs here say nothing of it: to a training loss of 0.2 Adam is"
            " there after 80 to 540 updates, within or soon after the slow start of 200"
            " updates that YellowFin begins with, and gradients were not clipped as in"
            " the released code. Then YellowFin needed 1.3 to 1.7 times Adam's updates,"
            " and more than twice as many without delay (190 and 80). A run with"
            " clipping to a loss of 0.05 has no optimum 8 updates late: in 3,000"
            " updates YellowFin does not arrive under all seeds, and Adam needs 1,800."
            " There YellowFin needed 1.8 times Adam's updates 4 late, and without delay"
            " (1,960 and 1,070; 715 and 390).",
            chosen=claims.Chosen.LATER,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: momenta at a delay of 8, and an error."""
    return {
        "Total 8 late, loop": total(LOOP, 8),
        "Total 8 late, loop, with noise": total(LOOP, 8, "noise"),
        "Total 8 late, kept": total("kept", 8),
        "Total 8 late, none": total("none", 8),
        "Applied by the loop 8 late": mean(
            "applied_momentum", task="no noise", momentum=LOOP, delay=8
        ),
        "Test error 8 late, none": error("none"),
    }


def total(momentum: str, delay: float, task: str = "no noise") -> Measure:
    """The total momentum, a mean over the last 40 % of a run."""

    def measure(run):
        at = dict(task=task, momentum=momentum, delay=delay)
        rows = analysis.where(run.curves, **at)
        return float(rows[rows["update"] > 600].total_momentum.mean())

    return measure


def error(momentum: str) -> Measure:
    """Test error on digits, 8 updates late."""
    return tuned("test_error", task="digits", momentum=momentum, delay=8)
