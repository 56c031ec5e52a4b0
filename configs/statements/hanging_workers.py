"""What Maranjyan et al. say of MindFlayer, and records."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import difference, least, mean, ratio, tuned

hang = statements.config_of(__file__).hang


def gradients(method: str, chance: float) -> Measure:
    """The gradients that were used until the end."""
    return mean("examples", method=method, tasks=hang(chance))


def loss(config: ConfigDict, method: str, chance: float) -> Measure:
    """The training loss at the end; of Rennala with the batch that tuning chooses."""
    if method != "Rennala":
        return tuned("train_loss", method=method, tasks=hang(chance))
    return least(
        [loss(config, f"Rennala, batch {size}", chance) for size in config.batch]
    )


def change(config: ConfigDict, method: str, chance: float) -> Measure:
    """MindFlayer's training loss less the loss of another method."""
    flayer = loss(config, "MindFlayer", chance)
    return difference(flayer, loss(config, method, chance))


def published(config: ConfigDict) -> list[Published]:
    """MindFlayer against both others, where the most tasks hang."""
    often = max(config.hang_probability)
    paper = dict(
        source="Maranjyan, Omar, Richtarik (2024), arXiv:2410.04285, abstract",
        setting="a quadratic, and two layers on MNIST (as we recall)",
    )
    headline = Published(
        text="Where the times of tasks have heavy tails, MindFlayer is faster than"
        " Rennala and than ASGD",
        said="it consistently outperforms baselines, above all where times have heavy"
        " tails",
        tried="A task here takes its time or hangs for ever, which decides the"
        " comparison. A run needs lognormal or log-Cauchy times that end.",
        **paper,
    )
    hanging = [
        Published(
            text=f"Where {hang(often)}, MindFlayer has less loss than {other}",
            said="it outperforms baselines, above all where noise has heavy tails",
            measure=change(config, other, often),
            at_most=0.0,
            bound_is_ours=True,
            **paper,
        )
        for other in ("Rennala", "ASGD")
    ]
    return [headline, *hanging]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Losses and gradients of MindFlayer, which gets 0.9 in 1.5 s of each worker."""
    used = gradients("MindFlayer", 0.1)
    return {
        "MindFlayer's gradients, 10 % hang": used,
        "MindFlayer's gradients / ASGD's, 10 % hang": ratio(
            used, gradients("ASGD", 0.1)
        ),
        "MindFlayer's loss, 10 % hang": loss(config, "MindFlayer", 0.1),
        "ASGD's loss, none hangs": loss(config, "ASGD", 0.0),
    }
