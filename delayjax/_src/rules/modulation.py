"""Laws: factors of the staleness that multiply updates."""

import jax
import jax.numpy as jnp

from delayjax._src.ground import dtypes, extras, kinds
from delayjax._src.ground.pickling import remembered


def inverse(staleness: jax.Array) -> jax.Array:
    """Divides by the staleness: law(tau) = 1 / max(1, tau), float32 or wider [].

    Args:
        staleness: in steps, int32 [].

    Example:
        >>> [float(inverse(tau)) for tau in (0, 1, 4)]
        [1.0, 1.0, 0.25]

    References:
        Zhang, Gupta, Lian and Liu, Staleness-aware async-SGD, IJCAI 2016,
        arXiv:1511.05950. Kardam's 1 / (1 + tau) is `polynomial(1.0)`.
    """
    return 1.0 / jnp.maximum(1.0, dtypes.wide(staleness))


@remembered
def polynomial(power: kinds.NonNegative) -> extras.Law:
    """Polynomial decay: law(tau) = (1 + tau)^-power.

    Args:
        power: non-negative; 0.5 in FedAsync (Xie, Koyejo and Gupta, 2019,
            arXiv:1903.03934), 1.0 in Kardam (Damaskinos et al., ICML 2018,
            arXiv:1802.07928). May be traced.

    Example:
        >>> [float(polynomial(0.5)(tau)) for tau in (0, 3)]
        [1.0, 0.5]
    """
    return lambda tau: (1.0 + dtypes.wide(tau)) ** -dtypes.wide(power)


@remembered
def hinge(slope: kinds.NonNegative, knee: kinds.NonNegative) -> extras.Law:
    """Full steps up to a staleness, then hyperbolic decay.

        law(tau) = 1                              for tau <= knee
        law(tau) = 1 / (slope (tau - knee) + 1)   for tau > knee

    Args:
        slope: the slope per step, non-negative; 10 in FedAsync. May be traced.
        knee: the last staleness of full steps, non-negative; 4 in FedAsync. May be
            traced.

    Example:
        >>> [float(hinge(1.0, 4)(tau)) for tau in (4, 5, 7)]
        [1.0, 0.5, 0.25]

    References:
        Xie, Koyejo and Gupta, FedAsync, 2019, arXiv:1903.03934.
    """
    return lambda tau: 1.0 / (slope * jnp.maximum(0.0, dtypes.wide(tau) - knee) + 1.0)


@remembered
def capped(workers: kinds.Positive) -> extras.Law:
    """Full steps up to the number of workers: law(tau) = min(1, P / tau).

    Args:
        workers: P, positive. May be traced.

    Example:
        >>> [float(capped(4)(tau)) for tau in (0, 4, 8)]
        [1.0, 1.0, 0.5]

    References:
        Mishchenko, Bach, Even and Woodworth, Asynchronous SGD beats minibatch SGD under
        arbitrary delays, 2022, arXiv:2206.07638 (as implemented in its code).
    """

    def law(staleness: jax.Array) -> jax.Array:
        full = dtypes.wide(workers)
        return full / jnp.maximum(full, dtypes.wide(staleness))

    return law


@remembered
def exponential(rate: kinds.NonNegative) -> extras.Law:
    """Exponential decay: law(tau) = exp(-rate tau).

    Args:
        rate: the rate per step, non-negative; 0.2 in Kardam's demonstration. May be
            traced.

    Example:
        >>> [round(float(exponential(0.2)(tau)), 4) for tau in (0, 5)]
        [1.0, 0.3679]

    References:
        Damaskinos et al., Kardam, ICML 2018, arXiv:1802.07928.
    """
    return lambda tau: jnp.exp(-dtypes.wide(rate) * dtypes.wide(tau))


@remembered
def delay_adaptive(
    learning_rate: kinds.Positive,
    concurrency: kinds.NonNegative,
    *,
    bound: kinds.Positive = 1.0,
) -> extras.Law:
    """Full steps up to a staleness, then a learning rate of at most bound / tau.

        law(tau) = 1                          for tau <= tau_C
        law(tau) = min(1, bound / (eta tau))  for tau > tau_C

    Behind an optimizer with the learning rate eta, this gives the learning rate eta, or
    min(eta, bound / tau). Three papers have this law, each with its own bound:

    | paper | tau_C | bound |
    |---|---|---|
    | Koloskova et al. | the concurrency (number of workers) | 1 / (4 L) |
    | FADAS | a threshold that the user gives | 1 |
    | Mishchenko et al., in theory | 0 | c / L, with c about 1/4 |

    L is the largest curvature. FADAS measures the largest staleness of a buffer;
    `exchange.mean` and `replay` hand on the mean staleness of several gradients.

    Args:
        learning_rate: eta of the optimizer before it, positive: a number, since a law
            does not see the step. May be traced.
        concurrency: tau_C in steps, non-negative. May be traced.
        bound: positive, in steps times a learning rate. May be traced.

    Example:
        >>> law = delay_adaptive(0.5, 2, bound=1.0)
        >>> [float(law(tau)) for tau in (0, 2, 4, 8)]  # 1/4 and 1/8 are below 0.5
        [1.0, 1.0, 0.5, 0.25]

    References:
        Koloskova, Stich and Jaggi, Sharper convergence guarantees for asynchronous SGD,
        2022, arXiv:2206.08307; Wang, Wang, Lu and Chen, FADAS, ICML 2024,
        arXiv:2407.18365; Mishchenko, Bach, Even and Woodworth, 2022, arXiv:2206.07638
        (as implemented there, the law is `capped`).
    """

    def law(staleness: jax.Array) -> jax.Array:
        reach = dtypes.wide(bound / learning_rate)
        tau = dtypes.wide(staleness)
        reduced = reach / jnp.maximum(reach, tau)
        return jnp.where(tau <= concurrency, 1.0, reduced)

    return law
