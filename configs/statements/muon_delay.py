"""Claims about the cost of late updates, and records of `configs/muon_delay.py`."""

import numpy as np
from ml_collections import ConfigDict

from experiments import Published, claims
from experiments.results.estimates import Measure
from experiments.results.measures import difference, extreme, ratio, tuned


def gap(name: str, width: int, delay: int) -> Measure:
    """The cost of a delay: the test loss with it less the loss without it, nats."""
    late, fresh = (
        tuned("test_loss", optimizer=name, width=width, delay=tau) for tau in (delay, 0)
    )
    return difference(late, fresh)


def published(config: ConfigDict) -> list[Published]:
    """The claim of the source, and claims about Adam at one size and at all sizes."""
    each = [
        ratio(gap("Muon", width, 8), gap("Adam", width, 8)) for width in config.width
    ]
    marin = dict(
        source="Marin project, issue marin#6431 (runs of a program, not a paper)",
        said="a loss gap of 0.850 for Muon, and of 2.213 for AdamH",
        setting="mixture of experts, width 512, a uniform delay; Muon's step is not"
        " tuned",
    )
    ours = dict(at_most=1.0, bound_is_ours=True, **marin)
    return [
        Published(
            text="Late updates cost Muon less than AdamH",
            tried="AdamH is not here, and the statements below are about Adam. They"
            " have been the headline, one after the other.",
            chosen=claims.Chosen.LATER,
            **marin,
        ),
        Published(
            text=f"At the largest width, {config.width[-1]}, eight late updates cost"
            " Muon no more than Adam",
            measure=each[-1],
            tried="Steps are a factor of 2 apart. Other configs do not confirm it: at"
            " this width and after four times the updates eight late updates cost both"
            " the same (configs/char_lm.py), and at width 64 one late update costs Muon"
            " as much as Adam (configs/one_late.py).",
            chosen=claims.Chosen.LATER,
            **ours,
        ),
        Published(
            text="Eight late updates cost Muon no more than Adam at any width, so that"
            " the largest ratio of both costs is at most 1",
            measure=extreme(np.max, each),
            tried="The source has one width, 512. Width 8, which is the farthest from"
            " it, decides here.",
            chosen=claims.Chosen.UNSEEN,
            **ours,
        ),
    ]


def records(config: ConfigDict) -> dict[str, Measure]:
    """The records: costs at the largest size, of 8 late updates and of one."""
    return {
        "Cost of 8, SGD": gap("SGD", 32, 8),
        "Cost of 8, Adam": gap("Adam", 32, 8),
        "Cost of 8, Muon": gap("Muon", 32, 8),
        "Cost of 1, Adam": gap("Adam", 32, 1),
        "Cost of 1, Muon": gap("Muon", 32, 1),
    }
