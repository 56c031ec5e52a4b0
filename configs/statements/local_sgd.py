"""That late averages pay, and records of `configs/local_sgd.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import difference, mean, tuned


def loss(method: str, **where) -> Measure:
    """Test loss in nats a character, at the best step."""
    return tuned("test_loss", method=method, **where)


def published(config: ConfigDict) -> list[Published]:
    """That late averages pay; the bounds are ours."""
    del config
    return [
        Published(
            text="In the same time DaSGD trains at least as well as local SGD",
            source="DaSGD (2020), arXiv:2006.00441",
            said="all communication is hidden, and convergence stays O(1/sqrt(N))",
            measure=difference(loss("DaSGD"), loss("local SGD", period=8)),
            at_most=0.0,
            bound_is_ours=True,
        ),
        Published(
            text="In the same time DGA trains better than averaging gradients at once",
            source="Zhu et al. (2021), DGA, NeurIPS",
            said="2.55 to 4.07 times as fast",
            setting="16 Raspberry Pi",
            measure=difference(loss("DGA"), loss("gradients")),
            at_most=0.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """How many steps fit, and the losses."""
    del config
    return {
        "Steps of gradients": mean("updates", method="gradients"),
        "Steps of DaSGD": mean("updates", method="DaSGD"),
        "Test loss of gradients": loss("gradients"),
        "Test loss, averages every 8": loss("local SGD", period=8),
        "Test loss of DaSGD": loss("DaSGD"),
    }
