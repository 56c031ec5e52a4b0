"""Claims of Zhang and Mitliagkas about the closed loop, and records."""

from ml_collections import ConfigDict

from experiments import claims, statements
from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import mean, ratio, soonest, tuned
from experiments.results.metrics import TimeTo

_CONFIG = statements.config_of(__file__)
LOOP, YELLOWFIN, ADAM = _CONFIG.LOOP, _CONFIG.YELLOWFIN, _CONFIG.ADAM


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract about YellowFin."""
    late = max(config.delay)
    paper = dict(
        source="Zhang and Mitliagkas (2017), arXiv:1706.03471, abstract",
        said="up to 2.69 times fewer iterations than Adam in asynchronous settings",
        setting="ResNets and LSTMs: images, language models, parsing; 16 workers",
    )
    return [
        Published(
            text="YellowFin with the closed loop can need fewer iterations than Adam"
            " with late gradients",
            tried="Without delay YellowFin does not beat Adam on this task either, so"
            " that the run says nothing about the closed loop: in an earlier run it"
            " needed 1.8 times Adam's updates, both without delay and 4 late. The"
            " statement below was the headline before.",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
        Published(
            text=f"With gradients {late} updates late YellowFin with the closed loop"
            " needs fewer updates to a training loss than Adam",
            measure=ratio(
                updates(config, ADAM, late), updates(config, YELLOWFIN, late)
            ),
            at_least=1.0,
            bound_is_ours=True,
            tried="2.69 is the largest number of the source. Ours is a small network;"
            " the factor of YellowFin's step is searched, and step and beta_1 of Adam."
            " YellowFin clips gradients and does not smooth momentum and step, as in"
            " its released code; Adam does not clip. At this delay the searched"
            " momentum is none, for Adam as for SGD, so that momentum has nothing to"
            " gain. YellowFin's number includes its slow start of 200 updates. Earlier"
            " runs: to a loss of 0.2, without clipping, YellowFin needed 1.3 to 1.7"
            " times Adam's updates; to 0.05, with clipping, 1.8 times, both 4 late and"
            " without delay, and 8 late it did not arrive under all seeds in 3,000"
            " updates (Adam needed 1,800).",
            chosen=claims.Chosen.LATER,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: momenta at a delay of 8, an error, and updates of two optimizers."""
    return {
        "Total 8 late, loop": total(config, LOOP),
        "Total 8 late, loop, with noise": total(config, LOOP, "noise"),
        "Total 8 late, kept": total(config, "kept"),
        "Total 8 late, none": total(config, "none"),
        "Applied by the loop 8 late": mean(
            "applied_momentum", task="no noise", momentum=LOOP, delay=8
        ),
        "Test error 8 late, none": error("none"),
        "Updates of Adam 8 late": updates(config, ADAM, 8),
        "Updates of YellowFin without delay": updates(config, YELLOWFIN, 0),
    }


def updates(config: ConfigDict, name: str, delay: int) -> Measure:
    """The updates until the loss on digits is reached."""
    time = TimeTo("train_loss", config.loss, along="update")
    return soonest(time, task="digits", momentum=name, delay=delay)


def total(config: ConfigDict, momentum: str, task: str = "no noise") -> Measure:
    """The total momentum 8 updates late, a mean over the last 40 % of a run."""

    def measure(run):
        rows = run.where(task=task, momentum=momentum, delay=8).curves
        return float(rows[rows["update"] > 0.6 * config.updates].total_momentum.mean())

    return measure


def error(momentum: str) -> Measure:
    """Test error on digits, 8 updates late."""
    return tuned("test_error", task="digits", momentum=momentum, delay=8)
