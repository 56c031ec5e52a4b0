"""Claims of Maranjyan et al. about MindFlayer, and records."""

from ml_collections import ConfigDict

from experiments import Published, claims, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, soonest, tuned
from experiments.results.metrics import TimeTo

_CONFIG = statements.config_of(__file__)
hang, mindflayer = _CONFIG.hang, _CONFIG.mindflayer


def gradients(method: str, chance: float) -> Measure:
    """The number of gradients that were used until the end."""
    return mean("examples", method=method, tasks=hang(chance))


def loss(method: str, chance: float) -> Measure:
    """The training loss at the end."""
    return tuned("train_loss", method=method, tasks=hang(chance))


def until(config: ConfigDict, *methods: str) -> Measure:
    """Seconds to the target with heavy tails, of the method that tuning chooses."""
    time = TimeTo("train_loss", config.target)
    return least([soonest(time, method=name, tasks=_CONFIG.HEAVY) for name in methods])


def published(config: ConfigDict) -> list[Published]:
    """The claim of the abstract about MindFlayer."""
    flayers = map(mindflayer, config.allotted_seconds)
    rivals = ["ASGD", *(f"Rennala, batch {size}" for size in config.batch)]
    return [
        Published(
            text="Where the times of tasks have heavy tails, MindFlayer is sooner at a"
            " training loss than the best of Rennala and ASGD",
            source="Maranjyan, Omar, Richtarik (2024), arXiv:2410.04285, abstract",
            said="it consistently outperforms baselines, above all where times have"
            " heavy tails",
            setting="a quadratic, and two layers on MNIST (as we recall)",
            measure=ratio(until(config, *flayers), until(config, *rivals)),
            at_most=1.0,
            bound_is_ours=True,
            tried="Pareto times, which end; tasks that hang for ever decide nothing.",
            chosen=claims.Chosen.UNSEEN,
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses and gradients; MindFlayer gets 0.9 per worker in 1.5 s."""
    name = mindflayer(min(config.allotted_seconds))
    used = gradients(name, 0.1)
    return {
        "MindFlayer's gradients, 10 % hang": used,
        "MindFlayer's gradients / ASGD's, 10 % hang": ratio(
            used, gradients("ASGD", 0.1)
        ),
        "MindFlayer's loss, 10 % hang": loss(name, 0.1),
        "ASGD's loss, none hangs": loss("ASGD", 0.0),
    }
