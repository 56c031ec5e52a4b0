"""Claims about late updates and momentum, and records of `configs/char_lm.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, tuned

NAMES = ("SGD", "Adam", "Muon")


def loss(name: str, delay: float, **where: float) -> Measure:
    """Held-out loss, nats a character."""
    return tuned("test_loss", optimizer=name, delay=delay, **where)


def cost(name: str, delay: float, **where: float) -> Measure:
    """The held-out loss that a delay adds."""
    return difference(loss(name, delay, **where), loss(name, 0, **where))


def published(config: ConfigDict) -> list[Published]:
    """The claims about momentum; `one_late` has the claims about one late update."""
    more, less = (cost("Adam", 1, momentum=m) for m in (0.9, 0.0))
    return [
        Published(
            text="One update of delay costs Adam less with a momentum of 0.9 than with"
            " none",
            source="Zmushko et al. (2026), arXiv:2606.30634, body",
            said="more momentum absorbs more of the delay",
            setting="SmolLM-360M, PipeDream-2BW; AdamW and Muon",
            measure=difference(more, less),
            at_most=0.0,
            bound_is_ours=True,
            tried="A far smaller model; the step is tuned at each delay.",
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: held-out losses without delay, and the cost of the longest delay."""
    return {
        **{f"Loss of {name} without delay": loss(name, 0) for name in NAMES},
        **{f"A delay of 8 adds to {name}'s": cost(name, 8) for name in NAMES},
    }
