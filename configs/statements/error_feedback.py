"""Claims of Xu and Huang about DEF, and records."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import ratio, tuned

LEAST = 1 / 64


def best(metric: str, method: str, share: float) -> Measure:
    """A metric at the best step and momentum."""
    return tuned(metric, method=method, share=share)


def over_feedback() -> Measure:
    """Loss of 1/64 with DEF over the loss with error feedback."""
    methods = ("DEF", "error feedback")
    return ratio(*(best("train_loss", method, LEAST) for method in methods))


def published(config: ConfigDict) -> list[Published]:
    """The claims about DEF and error feedback."""
    return [
        Published(
            text="Of 1/64, DEF reaches a smaller training loss than error feedback (our"
            " reading)",
            source="Xu and Huang (2020), arXiv:2004.05298, abstract",
            said="a better convergence bound than error feedback, and empirical"
            " improvements",
            setting="random blocks; networks for images (as we recall)",
            measure=over_feedback(),
            at_most=1.0,
            bound_is_ours=True,
            tried="At 1/16 error feedback ends above no memory at all here; at 1/64 the"
            " seeds do not decide it (0.36 to 1.37 times). The strength of DEF, 0.3, is"
            " not searched.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: test errors of error feedback."""
    return {
        "Test error of a quarter, feedback": best("test_error", "error feedback", 0.25),
        "Test error of 1/64, feedback": best("test_error", "error feedback", LEAST),
    }
