"""What Marin saw of late stages, and records of `configs/late_or_mixed.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, ratio, tuned


def loss(name: str, kind: str, stages: int | None = 8) -> Measure:
    """Held-out loss in nats a character, at the best step and momentum."""
    late = {} if stages is None else {"stages": stages}
    return tuned("test_loss", optimizer=name, gradients=kind, **late)


def cost(name: str, kind: str, stages: int = 8) -> Measure:
    """The loss less the loss of the same optimizer in one stage."""
    return difference(loss(name, kind, stages), loss(name, "one stage", None))


def published(config: ConfigDict) -> list[Published]:
    """What the Marin project saw; no paper says how far `late` is from `mixed`."""
    del config
    return [
        Published(
            text="A uniform delay costs Muon at least 0.282 / 0.086 times what late"
            " stages cost",
            source="Marin project, issue 6431 of its repository (a program, no paper)",
            said="a loss gap of 0.086 with delays 5 .. 0 by stage, of 0.282 with 5",
            setting="a mixture of experts, width 512, 6000 steps, step not tuned",
            measure=ratio(cost("muon", "vertical sync"), cost("muon", "late")),
            at_least=0.282 / 0.086,
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Losses at mixed versions in 8 stages."""
    del config
    names = ("sgd", "adam", "muon")
    return {f"Loss of {name}, mixed": loss(name, "mixed") for name in names}
