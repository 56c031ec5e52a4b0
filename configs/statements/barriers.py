"""What the barriers' authors say, and records of `configs/barriers.py`."""

from ml_collections import ConfigDict

from experiments import Published
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned
from experiments.results.metrics import TimeTo


def until(config: ConfigDict, barrier: str, along: str = "seconds") -> Measure:
    """Seconds, or updates, to the target; of SSP with the slack that tuning chooses."""
    if barrier != "SSP":
        return tuned(TimeTo("train_loss", config.target, along=along), barrier=barrier)
    return least(
        [until(config, f"SSP, {bound} ahead", along) for bound in config.bounds]
    )


def published(config: ConfigDict) -> list[Published]:
    """SSP in time, and BSP for each update."""
    faster = least([until(config, barrier) for barrier in ("BSP", "ASP")])
    return [
        Published(
            text="The faster of BSP and ASP takes longer than SSP with its best slack",
            source="Ho et al., NIPS 2013, abstract",
            said="faster convergence than fully synchronous and asynchronous schemes",
            setting="topic model, matrix factorization, Lasso, 32 machines (as we"
            " recall)",
            measure=ratio(faster, until(config, "SSP")),
            at_least=1.0,
            bound_is_ours=True,
        ),
        Published(
            text="BSP takes fewer updates than ASP",
            source="Wang, Catterall, Mortier (2017), arXiv:1709.07772",
            said="BSP has the best accuracy for each update",
            setting="a convolutional network on MNIST, 6 nodes, Exp(1) s more a task",
            measure=ratio(
                until(config, "BSP", "update"), until(config, "ASP", "update")
            ),
            at_most=1.0,
            bound_is_ours=True,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """How many updates each makes in 200 s, and what comes of them."""
    made = ("BSP", "PSP, 4 asked", "ASP")
    return {
        **{
            f"Updates of {barrier}": mean("updates", barrier=barrier)
            for barrier in made
        },
        "Seconds of ASP to the loss": until(config, "ASP"),
        "Test accuracy of BSP": tuned("test_accuracy", barrier="BSP"),
        "Test accuracy of ASP": tuned("test_accuracy", barrier="ASP"),
    }
