"""Claims of Marin about late stages, and records of `configs/late_or_mixed.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, tuned


def loss(name: str, kind: str, stages: int | None = 8) -> Measure:
    """Held-out loss in nats a character, at the best step and momentum."""
    late = {} if stages is None else {"stages": stages}
    return tuned("test_loss", optimizer=name, gradients=kind, **late)


def published(config: ConfigDict) -> list[Published]:
    """The claims of the Marin project; no paper compares `late` with `mixed`."""
    return [
        Published(
            text="A uniform delay of 7 updates costs Muon more than late stages, whose"
            " delays are 7 to 0",
            source="Marin project, issue 6431 of its repository (a program, no paper)",
            said="a loss gap of 0.086 with delays 5 .. 0 by stage, of 0.282 with 5",
            setting="a mixture of experts, width 512, 6000 steps, step not tuned",
            measure=difference(loss("muon", "vertical sync"), loss("muon", "late")),
            at_least=0.0,
            bound_is_ours=True,
            demonstration=True,
            tried="In each stage the uniform delay is at least as long, so that a run"
            " can hardly fail this statement. The headline of this source is in"
            " configs/muon_delay.py.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: losses at mixed versions in 8 stages."""
    names = ("sgd", "adam", "muon")
    return {f"Loss of {name}, mixed": loss(name, "mixed") for name in names}
