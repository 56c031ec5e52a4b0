"""What Maranjyan et al. say of MindFlayer, and records."""

from ml_collections import ConfigDict

from experiments import Published, statements
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned

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


def published(config: ConfigDict) -> list[Published]:
    """What the abstract claims of MindFlayer."""
    del config
    return [
        Published(
            text="Where the times of tasks have heavy tails, MindFlayer is faster than"
            " Rennala and than ASGD",
            source="Maranjyan, Omar, Richtarik (2024), arXiv:2410.04285, abstract",
            said="it consistently outperforms baselines, above all where times have"
            " heavy tails",
            setting="a quadratic, and two layers on MNIST (as we recall)",
            tried="A task here takes its time or hangs for ever, which decides the"
            " comparison. A run needs lognormal or log-Cauchy times that end.",
        )
    ]


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
