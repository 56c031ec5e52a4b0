"""Claims that short delays cost less than long ones; records of `outer_overlap`."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned

_CONFIG = statements.config_of(__file__)


def over_waiting(merge: str, **where) -> Measure:
    """Training loss over the loss of workers that wait, each at its optimum."""
    this = tuned("train_loss", merge=merge, **where)
    return ratio(this, tuned("train_loss", merge=_CONFIG.WAITS))


def published(config: ConfigDict) -> list[Published]:
    """The claims: the headline of Streaming DiLoCo, and Eager DiLoCo's table."""
    short, long = min(config.delay), max(config.delay)
    return [
        Published(
            text=f"With half of each model blended in, a delay of {short} steps costs"
            " no more than 10 % of the loss",
            source="Douillard et al. (2025), Streaming DiLoCo, arXiv:2501.18512,"
            " abstract",
            said="workers train on while they exchange, one of three ingredients, at a"
            " similar quality as before",
            setting="language models of up to billions of parameters, 100 steps a"
            " round, a few of them in flight, fragments",
            measure=over_waiting("blended", delay=short),
            at_most=1.1,
            bound_is_ours=True,
        ),
        Published(
            text=f"Overwriting after {long} of {config.period} steps ends higher than"
            " workers that wait",
            source="Kale et al. (2025), Eager Updates, arXiv:2502.12996, table 2",
            said="evaluation loss 2.67 without overlap; 3.01 with a result that is a"
            " whole round late, 2.73 with a smaller outer step",
            setting="language models of 500 million parameters, 30 steps a round",
            measure=over_waiting("overwriting", delay=long),
            at_least=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="Eager outer steps cost no more than 10 % of the loss",
            source="Kale et al. (2025), Eager Updates, arXiv:2502.12996, table 2",
            said="evaluation loss 2.67 without overlap and 2.69 with eager updates",
            setting="language models of 500 million parameters, 30 steps a round",
            measure=over_waiting(_CONFIG.EAGER),
            at_most=1.1,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses of each merge and delay, and of one worker, over waiting."""
    return {
        "Training loss of workers that wait": tuned("train_loss", merge=_CONFIG.WAITS),
        "Loss of one worker over waiting": over_waiting(_CONFIG.ALONE),
    } | {
        f"Loss of {merge}, {delay} steps late, over waiting": over_waiting(
            merge, delay=delay
        )
        for merge in _CONFIG.MERGES
        for delay in config.delay
    }
