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


def published(config: ConfigDict) -> list[Published]:
    """What error feedback recovers of a delay of one update."""
    del config
    return [
        Published(
            text="Error feedback, in our reading 2 u_t - u_{t-1}, recovers at least"
            " half of what the delay costs Adam",
            source="Zmushko et al. (2026), arXiv:2606.30634, abstract and body",
            said="an optimizer-agnostic error-feedback correction bridges the gap; it"
            " recovers 50 to 90 % of it",
            setting="language models, PipeDream-2BW; AdamW and Muon",
            tried="One late update costs Adam nothing that these seeds see on digits:"
            " late over fresh is 0.92 to 3.46, so a share of that cost is 0 / 0."
            " On the task of `configs/one_late.py`, where it costs 0.1 to 0.2 nats,"
            " a third arm needs another hour of search.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Training losses over each other."""
    del config
    return {
        "Heavy ball, corrected / fresh": over("heavy ball", "corrected", "fresh"),
    }
