"""Claims with tolerances by hand, of the configs that are not yet written anew."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.results.tables import Found


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence about the results, and the number that decides whether it holds.

    Attributes:
        text: the sentence.
        measure: results and curves -> a number, or whether it holds.
        about: the number that is expected; None where `measure` answers yes or no.
        within: how far from `about` it may be.
        at_least: a lower bound, in place of `about`.
        at_most: an upper bound, likewise.
    """

    text: str
    measure: Callable[[Found], float | bool]
    _: dataclasses.KW_ONLY
    about: float | None = None
    within: float = 0.0
    at_least: float | None = None
    at_most: float | None = None


class Verdict(NamedTuple):
    """What became of a claim."""

    text: str
    expected: str
    measured: float | bool | None  # None: it could not be measured
    met: bool
    reason: str  # why it could not be measured

    def __str__(self):
        mark = "met" if self.met else "MISSED"
        return f"{mark}: {self.text}: {self.shown}, expected {self.expected}"

    @property
    def shown(self) -> str:
        """The measured number, as text."""
        if self.measured is None:
            return f"not measured ({self.reason})"
        if isinstance(self.measured, bool | np.bool_):
            return "yes" if self.measured else "no"
        return "no value" if math.isnan(self.measured) else f"{self.measured:.4g}"


def check(claims: Sequence[Claim], found: Found) -> list[Verdict]:
    """Measures each claim. What cannot be measured is not met, with the reason."""
    verdicts = []
    for claim in claims:
        try:
            measured, reason = claim.measure(found), ""
        except Exception as error:  # a function of the config, on data it may not know
            measured, reason = None, f"{type(error).__name__}: {error}"
        verdicts.append(
            Verdict(
                claim.text, expected(claim), measured, _met(claim, measured), reason
            )
        )
    return verdicts


def expected(claim: Claim) -> str:
    """What a claim expects, as text."""
    parts = []
    if claim.about is not None:
        parts.append(f"{claim.about:g} ± {claim.within:g}")
    if claim.at_least is not None:
        parts.append(f"at least {claim.at_least:g}")
    if claim.at_most is not None:
        parts.append(f"at most {claim.at_most:g}")
    return " and ".join(parts) or "yes"


def _met(claim: Claim, measured: float | bool | None) -> bool:
    if measured is None or (isinstance(measured, float) and math.isnan(measured)):
        return False
    if claim.about is None and claim.at_least is None and claim.at_most is None:
        return bool(measured)
    number = float(measured)
    return (
        (claim.about is None or abs(number - claim.about) <= claim.within)
        and (claim.at_least is None or number >= claim.at_least)
        and (claim.at_most is None or number <= claim.at_most)
    )
