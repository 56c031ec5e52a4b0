"""Claims of the abstract, and records of `configs/ordered_momentum.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, ratio, tuned

_CONFIG = statements.config_of(__file__)
NONE, SEARCHED, GIVEN = _CONFIG.NONE, _CONFIG.SEARCHED, _CONFIG.GIVEN


def loss(momentum: str, beta: str | None = SEARCHED) -> Measure:
    """Training loss of 32 workers at the end, at the best step of other seeds."""
    return tuned("train_loss", momentum=momentum, workers=32, beta=beta)


def over_none(momentum: str) -> Measure:
    """Loss of a momentum of 0.9 over the loss without momentum."""
    return ratio(loss(momentum, GIVEN), loss(NONE, None))


def published(config: ConfigDict) -> list[Published]:
    """The claims of the abstract, with 32 workers."""
    paper = dict(source="Shi, Yang, Li (2024), arXiv:2407.19234, abstract")
    paper |= dict(bound_is_ours=True)
    paper |= dict(setting="ResNet-20 on CIFAR-10 and CIFAR-100, 16 and 64 workers")
    others = [loss(name) for name in ("heavy ball", "DANA", "one slow")]
    asgd = least([loss("heavy ball"), loss(NONE, None)])
    said = dict(
        said="better convergence performance compared with ASGD and other"
        " asynchronous methods with momentum",
        chosen=claims.Chosen.LATER,
    )
    return [
        Published(
            text="With 32 workers ordered momentum has a smaller training loss than"
            " the best of no momentum, heavy ball, DANA and one slow momentum, all"
            " numbers searched",
            measure=ratio(loss("ordered"), least([*others, loss(NONE, None)])),
            at_most=1.0,
            tried="Shifted momentum and SMEGA2, rivals in the source, are not here; the"
            " slow momentum, which knows no order, is ours. Times are Pareto of shape"
            " 1.5: with fewer late gradients order matters less.",
            **paper,
            **said,
        ),
        Published(
            text="It has a smaller training loss than the better of heavy ball and no"
            " momentum",
            measure=ratio(loss("ordered"), asgd),
            at_most=1.0,
            tried="Heavy ball is best without momentum, so that the rival is ASGD. It"
            " was the headline for a while.",
            **paper,
            **said,
        ),
        Published(
            text="With 32 workers heavy ball at 0.9 has a larger training loss than no"
            " momentum",
            said="naively incorporating momentum into ASGD can impede the convergence",
            measure=over_none("heavy ball"),
            at_least=1.0,
            **paper,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: ratios of losses at a momentum of 0.9, with 32 workers."""
    both = (loss(name, GIVEN) for name in ("ordered", "heavy ball"))
    return {
        "Loss, ordered / heavy ball, 32": ratio(*both),
        "Loss, ordered / none, 32": over_none("ordered"),
        "Loss, heavy ball / none, 32": over_none("heavy ball"),
    }
