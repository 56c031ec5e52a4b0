"""What Zhang and Mitliagkas say of the closed loop, and our numbers."""

from ml_collections import ConfigDict

from experiments import statements
from experiments.results import analysis
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, ratio, tuned

LOOP = statements.config_of(__file__).LOOP


def published(config: ConfigDict) -> list[Published]:
    """Statements about the loop, and about a delay without it."""
    del config
    loop = dict(
        source="Zhang and Mitliagkas (2017), arXiv:1706.03471, closed loop",
        bound_is_ours=True,
    )
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
        Published(
            text="The loop's total momentum stays the same up to a delay of 8 updates",
            measure=difference(total(LOOP, 8), total(LOOP, 0)),
            at_least=-0.01,
            at_most=0.01,
            said="the total matches its target",
            **loop,
        ),
        Published(
            text="8 updates late the loop has a smaller error than a kept momentum"
            " (our reading)",
            measure=difference(error(LOOP), error("kept")),
            at_most=0.0,
            said="up to 2.69 times fewer iterations than Adam, 16 asynchronous workers",
            tried="On another CPU one of five seeds went wrong: 0.061 (-0.04 to 0.16).",
            **loop,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Momenta at a delay of 8, losses at one step, and an error."""
    del config
    at = dict(task="digits", delay=4, learning_rate=0.03, target=0.9)
    losses = ratio(*(mean("train_loss", momentum=m, **at) for m in (LOOP, "kept")))
    return {
        "Total 8 late, loop": total(LOOP, 8),
        "Total 8 late, loop, with noise": total(LOOP, 8, "noise"),
        "Total 8 late, kept": total("kept", 8),
        "Total 8 late, none": total("none", 8),
        "Applied by the loop 8 late": mean(
            "applied_momentum", task="no noise", momentum=LOOP, delay=8
        ),
        "Digits, loss 4 late at 0.03 and 0.9, loop / kept": losses,
        "Test error 8 late, loop": error(LOOP),
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
