"""What error feedback's authors say, and records of `configs/late_updates.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned


def loss(name: str, gradients: str) -> Measure:
    """Training loss at the best step and momentum."""
    return tuned("train_loss", optimizer=name, gradients=gradients)


def over(name: str, one: str, other: str) -> Measure:
    """The loss with one kind of gradients over that with another."""
    return ratio(loss(name, one), loss(name, other))


def recovered(name: str) -> Measure:
    """The share of what the delay costs that the correction takes back."""
    kinds = ("fresh", "late", "corrected")

    def share(found):
        fresh, late, corrected = (loss(name, g)(found) for g in kinds)
        return (late - corrected) / (late - fresh)

    return share


def published(config: ConfigDict) -> list[Published]:
    """Statements about a delay of one update."""
    del config
    return [
        Published(
            text="Error feedback recovers half of what the delay costs Adam",
            source="Zmushko et al. (2026), arXiv:2606.30634",
            said="it recovers 50 to 90 % of the gap",
            setting="language models, PipeDream-2BW; AdamW and Muon",
            measure=recovered("Adam"),
            at_least=0.5,
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Training losses over each other."""
    del config
    return {
        "Heavy ball, corrected / fresh": over("heavy ball", "corrected", "fresh"),
    }
