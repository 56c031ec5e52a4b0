"""Claims of the barriers' authors, and records of `configs/barriers.py`."""

from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import least, mean, ratio, tuned
from experiments.results.metrics import TimeTo


def until(config: ConfigDict, barrier: str, along: str = "seconds") -> Measure:
    """Seconds or updates to the target; tuning chooses the slack and the sample."""
    forms = {
        "SSP": [f"SSP, {bound} ahead" for bound in config.bounds],
        "PSP": [f"PSP, {sample} asked" for sample in config.get("samples", ())],
    }
    metric = TimeTo("train_loss", config.target, along=along)
    names = forms.get(barrier, [barrier])
    return least([tuned(metric, barrier=name) for name in names])


def sooner(config: ConfigDict, barrier: str, *others: str) -> Measure:
    """The time of the fastest of the others over the time of a barrier."""
    fastest = least([until(config, other) for other in others])
    return ratio(fastest, until(config, barrier))


def published(config: ConfigDict) -> list[Published]:
    """The claims about SSP in time, or PSP beside all others; and BSP per update."""
    wang = dict(
        source="Wang, Catterall, Mortier (2017), arXiv:1709.07772, abstract",
        setting="a convolutional network on MNIST, 6 nodes, Exp(1) s more a task",
        bound_is_ours=True,
    )
    slacks = (
        "With a slack of 16 or more hardly any worker waits: SSP is then ASP. A message"
        " takes no time here."
    )
    if "samples" in config:
        headline = Published(
            text="PSP with its best sample reaches a training loss before the fastest"
            " of BSP, ASP and SSP with its best slack of 2, 4 and 8",
            said="compared with BSP, SSP and ASP it improves both the convergence speed"
            " and the scalability of SGD",
            measure=sooner(config, "PSP", "BSP", "ASP", "SSP"),
            at_least=1.0,
            tried=slacks,
            chosen=claims.Chosen.UNSEEN,
            **wang,
        )
    else:
        headline = Published(
            text="SSP with its best slack of 2, 4 and 8 reaches a training loss before"
            " the faster of BSP and ASP",
            source="Ho et al., NIPS 2013, abstract",
            said="faster convergence than fully synchronous and asynchronous schemes",
            setting="topic model, matrix factorization, Lasso, 32 machines (as we"
            " recall)",
            measure=sooner(config, "SSP", "BSP", "ASP"),
            at_least=1.0,
            bound_is_ours=True,
            tried=slacks,
            chosen=claims.Chosen.UNSEEN,
        )
    updates = (until(config, barrier, "update") for barrier in ("BSP", "ASP"))
    rest = Published(
        text="BSP takes fewer updates than ASP",
        said="BSP has the best accuracy for each update",
        measure=ratio(*updates),
        at_most=1.0,
        **(wang | dict(source="Wang, Catterall, Mortier (2017), arXiv:1709.07772")),
    )
    return [headline, rest]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: updates in 200 s, the time to the loss, and accuracies."""
    if "samples" in config:
        asked = "PSP, 4 asked"
        return {f"Updates of {asked}": mean("updates", barrier=asked)}
    return {
        **{
            f"Updates of {barrier}": mean("updates", barrier=barrier)
            for barrier in ("BSP", "ASP")
        },
        "Seconds of ASP to the loss": until(config, "ASP"),
        "Test accuracy of BSP": tuned("test_accuracy", barrier="BSP"),
        "Test accuracy of ASP": tuned("test_accuracy", barrier="ASP"),
    }
