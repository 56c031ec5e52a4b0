"""The laws that measured times follow."""

import math
import warnings
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike

from delayjax._src.cluster import service_time
from delayjax._src.cluster.service_time import ServiceTime
from delayjax._src.ground import checks

_EQUAL = 1e-9  # relative difference of times that count as equal
_LEVEL = 0.01  # the share of samples of the right law with a larger distance


class Fit(NamedTuple):
    """A law whose arguments have the maximum likelihood, given the times."""

    law: str  # the function of `cluster` that makes it
    arguments: dict[str, float]  # of that function
    distance: float  # Kolmogorov and Smirnov's, of the times from the law
    service: ServiceTime


def fit(times: ArrayLike) -> list[Fit]:
    """The lognormal, gamma, Pareto and shifted exponential laws closest to the times.

    The arguments of each law have the maximum likelihood. The distance of n times from
    a law with P(T <= t) = F(t) is Kolmogorov and Smirnov's,

        D = max_t | (times up to t) / n - F(t) |

    n times of the law F itself have a distance above D_n in 1 % of cases. If the
    smallest distance is above D_n, a warning says that none of the laws fits. A fit
    makes distances smaller, so a wrong law may stay below D_n.

    Args:
        times: in seconds, positive, of any shape; not all the same.

    Returns:
        A `Fit` for each law, the smallest distance first, with the fields `law` (its
        name), `arguments`, `distance` and `service`, which is
        `getattr(cluster, law)(**arguments)`.

    Example:
        >>> times = service_time.gamma(2.0, 3.0).sample(np.random.default_rng(0), 5000)
        >>> best, *_ = fit(times)
        >>> best.law, {name: round(value, 1) for name, value in best.arguments.items()}
        ('gamma', {'mean_seconds': 2.0, 'shape': 3.0})

    References:
        Massey, The Kolmogorov-Smirnov test for goodness of fit, JASA 46(253), 1951.
    """
    remedy = "leave out tasks that never ended, and gaps"
    seconds = checks.as_finite("times", times, positive=True, remedy=remedy).ravel()
    if not seconds.size or np.ptp(seconds) <= _EQUAL * seconds.max():
        raise ValueError(f"`times` must hold times that differ, got {times!r}.")
    fits = [_fit(law, each, seconds) for law, each in _likeliest(seconds).items()]
    fits.sort(key=lambda each: each.distance)
    most = scipy.stats.kstwo.isf(_LEVEL, seconds.size)
    if fits[0].distance > most:
        warnings.warn(
            f"None of the laws fits `times`: the smallest distance is"
            f" {fits[0].distance:.3g} ({fits[0].law}), and above {most:.3g} in 1 % of"
            " samples of the right law: use cluster.empirical(times).",
            stacklevel=2,
        )
    return fits


def _fit(law: str, arguments: dict[str, float], seconds: np.ndarray) -> Fit:
    service = getattr(service_time, law)(**arguments)
    below = 1 - service.survival(np.sort(seconds))
    shares = np.linspace(0, 1, seconds.size + 1)
    distance = max((shares[1:] - below).max(), (below - shares[:-1]).max())
    return Fit(law, arguments, float(distance), service)


def _likeliest(seconds: np.ndarray) -> dict[str, dict[str, float]]:
    """The arguments of maximum likelihood of each law."""
    spread, _, median = scipy.stats.lognorm.fit(seconds, floc=0)
    mean, cv = median * math.exp(spread**2 / 2), math.sqrt(math.expm1(spread**2))
    shape, _, stage = scipy.stats.gamma.fit(seconds, floc=0)
    tail, _, scale = scipy.stats.pareto.fit(seconds, floc=0)
    shift, rest = map(float, scipy.stats.expon.fit(seconds))
    return {
        "lognormal": dict(mean_seconds=float(mean), cv=cv),
        "gamma": dict(mean_seconds=float(shape * stage), shape=float(shape)),
        "pareto": dict(scale_seconds=float(scale), shape=float(tail)),
        "shifted_exponential": dict(shift_seconds=shift, mean_seconds=rest),
    }
