"""What Mohamad, Alamri and Bouchachia say of two levels, and our numbers."""

from ml_collections import ConfigDict

from experiments.results.claims import Published
from experiments.results.estimates import Measure
from experiments.results.measures import share, tuned


def published(config: ConfigDict) -> list[Published]:
    """What the abstract claims of cores and workers."""
    del config
    return [
        Published(
            text="More cores and more workers train faster, in proportion to both",
            source="Mohamad, Alamri, Bouchachia (2022), arXiv:2210.02882, abstract",
            said="a speed-up with the number of cores and of workers",
            setting="LDA by variational inference, and reinforcement learning",
            tried="A core is a delay here and saves no time. A run needs seconds in"
            " which c cores of a worker take c gradients.",
        )
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """Within the bounds and beyond, at the best step and at a step of 0.01."""
    del config
    return {
        "Excess loss, 1 worker of 1 core": excess(1, 1),
        "Excess loss, 64 workers of 32 cores": excess(64, 32),
        "Share lost at 0.01, 64 workers of 32 cores": share(
            "ended_higher", workers=64, cores=32, learning_rate=0.01
        ),
    }


def excess(workers: int, cores: int) -> Measure:
    """The training loss above the optimum, at the best step."""
    return tuned("excess_loss", workers=workers, cores=cores)
