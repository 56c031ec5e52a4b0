"""Claims of Maranjyan et al. about MindFlayer, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned

_CONFIG = statements.config_of(__file__)
hang, mindflayer = _CONFIG.hang, _CONFIG.mindflayer


def gradients(method: str, chance: float) -> Measure:
    """The number of gradients that were used until the end."""
    return mean("examples", method=method, tasks=hang(chance))


def excess(tasks: str, *methods: str) -> Measure:
    """The loss over its optimum at the end, of the best of some methods."""
    return least([tuned("excess_loss", method=name, tasks=tasks) for name in methods])


def published(config: ConfigDict) -> list[Published]:
    """The claim of the abstract about MindFlayer."""
    flayers = map(mindflayer, config.allotted_seconds)
    rivals = ["ASGD", *(f"Rennala, batch {size}" for size in config.batch)]
    return [
        Published(
            text="Where the times of tasks have heavy tails, MindFlayer is nearer to"
            " the least training loss after the same time than the best of Rennala and"
            " ASGD",
            source="Maranjyan, Omar, Richtarik (2024), arXiv:2410.04285, abstract",
            said="it consistently outperforms baselines, above all where times have"
            " heavy tails",
            setting="a quadratic, and two layers on MNIST (as we recall)",
            measure=ratio(
                excess(_CONFIG.HEAVY, *flayers), excess(_CONFIG.HEAVY, *rivals)
            ),
            at_most=1.0,
            bound_is_ours=True,
            tried="Pareto times, which end; tasks that hang for ever decide nothing. On"
            " a grid a ratio of times to a loss was undecided before.",
            chosen=claims.Chosen.LATER,
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records; MindFlayer gets 0.9 gradients of a worker in 1.5 s."""
    name = mindflayer(min(config.allotted_seconds))
    used = gradients(name, 0.1)
    return {
        "MindFlayer's gradients, 10 % hang": used,
        "MindFlayer's gradients / ASGD's, 10 % hang": ratio(
            used, gradients("ASGD", 0.1)
        ),
        "MindFlayer's excess loss, 10 % hang": excess(hang(0.1), name),
        "ASGD's excess loss, none hangs": excess(hang(0.0), "ASGD"),
    }
