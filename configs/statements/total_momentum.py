"""What Zhang and Mitliagkas say of the closed loop, and our numbers."""

from ml_collections import ConfigDict

from experiments import statements
from experiments.results import analysis
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, tuned

LOOP = statements.config_of(__file__).LOOP


def published(config: ConfigDict) -> list[Published]:
    """What the abstract claims of YellowFin."""
    del config
    return [
        Published(
            text="On 16 asynchronous workers YellowFin with the closed loop needs up to"
            " 2.69 times fewer iterations than Adam",
            source="Zhang and Mitliagkas (2017), arXiv:1706.03471, abstract",
            said="up to 2.69 times fewer iterations than Adam in asynchronous settings",
            setting="ResNets and LSTMs: images, language models, parsing",
            tried="The loop alone is here, around a target that is tuned. A run needs"
            " YellowFin's tuner and Adam, both late, and the updates to one loss.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Momenta at a delay of 8, and an error."""
    del config
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

    def measure(found):
        at = dict(task=task, momentum=momentum, delay=delay)
        rows = analysis.where(found.curves, **at)
        return float(rows[rows["update"] > 600].total_momentum.mean())

    return measure


def error(momentum: str) -> Measure:
    """Test error on digits, 8 updates late."""
    return tuned("test_error", task="digits", momentum=momentum, delay=8)
