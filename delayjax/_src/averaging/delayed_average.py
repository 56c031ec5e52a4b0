"""Averages that arrive some steps after they were begun: DaSGD, LOSCAR, DGA."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax.typing import ArrayLike

from delayjax._src import base
from delayjax._src.averaging import replicas
from delayjax._src.averaging.engine import averaged
from delayjax._src.ring import ring

Merge = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(x^i, x^i_(k) that the average was begun with, xm_(k)) -> x^i, of each leaf."""


class Begun(NamedTuple):
    """Memory of `delayed_average`."""

    begun: Any  # x^i_(k): the worker's model in the average on its way; () at delay 0


class Outbox(NamedTuple):
    """Memory of `dga`."""

    outbox: Any  # the worker's update whose mean arrives next
    later: Any  # ring of its updates behind that; () at a delay of 1


def overwriting(own: jax.Array, begun: jax.Array, mean: jax.Array) -> jax.Array:
    """x^i <- xm_(k): the steps since then are lost.

    Args:
        own: x^i, a leaf.
        begun: x^i_(k), the worker's model when the average was begun.
        mean: xm_(k), the average.

    Example:
        >>> import jax.numpy as jnp
        >>> print(overwriting(jnp.float32(5), jnp.float32(3), jnp.float32(2)))
        2.0
    """
    del own, begun
    return mean


def corrected(own: jax.Array, begun: jax.Array, mean: jax.Array) -> jax.Array:
    """x^i <- xm_(k) + (x^i - x^i_(k)): no step is lost, the workers' mean stays.

    Args:
        own: x^i, a leaf.
        begun: x^i_(k), the worker's model when the average was begun.
        mean: xm_(k), the average.

    Example:
        >>> import jax.numpy as jnp
        >>> print(corrected(jnp.float32(5), jnp.float32(3), jnp.float32(2)))
        4.0
    """
    return mean + (own - begun)


def blended(share: ArrayLike) -> Merge:
    """x^i <- xi x^i + (1 - xi) xm_(k).

    Args:
        share: xi, in [0, 1), the worker's own; at 0 the average overwrites. May be
            traced.

    Raises:
        ValueError: if it is not in [0, 1).

    Example:
        >>> import jax.numpy as jnp
        >>> print(blended(0.5)(jnp.float32(5), jnp.float32(3), jnp.float32(2)))
        3.5
    """
    base.check_number("share", share, below=1.0)

    def merge(own, begun, mean):
        del begun
        return share * own + (1 - share) * mean

    return merge


def delayed_average(
    inner: optax.GradientTransformation,
    delay: int,
    *,
    period: int,
    merge: Merge = corrected,
    axis_name: base.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DaSGD: an average begun after step k is merged d local steps later.

        x^i <- x^i + U(g^i)                          at every step
        xm_(k) = (1/P) sum_j x^j_(k)                 begun where `period` divides k
        x^i <- merge(x^i, x^i_(k), xm_(k))           after step k + d

    with x^i_(k) the model after k steps. In d steps an average has time to travel.

    | method | merge |
    |---|---|
    | DaSGD | `blended(xi)`; `overwriting` is xi = 0 |
    | LOSCAR | `corrected` |

    Args:
        inner: the worker's own optimizer. It receives its worker's extra arguments as
            they come.
        delay: d, in steps, at most `period`; 0 averages at once. Static.
        period: H, steps from one average to the next. Static.
        merge: a function of leaves; see `Merge`. Overwriting loses d local steps each
            period, blending (1 - xi) d of them, correcting none: then the mean of the
            workers' models moves by the mean of their local steps, and by nothing else.
        axis_name: of the workers; several names for several axes.

    Returns:
        A transformation such that `params + updates` is x^i. Its state holds one model
        a worker (none at delay 0) and `inner`. Sends one model, by an all-reduce, every
        `period` steps; a worker waits for what the slowest had done d steps ago. The
        sum depends on nothing that its step computes; a compiler may hide it behind the
        gradient at period 1, and not in the branch that it is in at longer ones.

    Raises:
        ValueError: if `delay` is negative or above `period`, `period` below 1, or (in
            `update`) a gradient is summed over the workers already.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = delayed_average(optax.sgd(1.0), 1, period=1)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-3., -5.], dtype=float32))

    References:
        Zhou et al. (DaSGD), 2020, arXiv:2006.00441, for the delayed average; its blend
        as commonly reported. LOSCAR, 2026, arXiv:2605.20866, for the corrected merge.
    """
    delay = base.check_bound("delay", delay)
    period = base.check_bound("period", period, at_least=1)
    if delay > period:
        raise ValueError(
            f"`delay` must be at most `period`, {period}, got {delay}: one average is"
            " in flight at a time. Use averaging.dga for longer delays."
        )

    def merged(due, model, begun):
        if period == 1 and delay > 0:  # in no branch, where nothing could hide the sum
            mean, model = replicas.mean_beside(model, begun, axis_name)
        else:
            mean = replicas.mean_when(due, begun, axis_name)
        mixed = jax.tree.map(_checked(merge), model, begun, mean)
        return optax.tree.where(due, mixed, model)

    def begin(params):
        return Begun(base.vary(params, axis_name=axis_name) if delay else ())

    def mix(step, memory, before, model):
        del before
        begun = memory.begun
        if delay == 0:
            return merged(replicas.due(step, period), model, model), memory
        done = step + 1
        # nothing arrives before the first average was begun
        arrives = (done >= period + delay) & ((done - delay) % period == 0)
        mixed = merged(arrives, model, begun)
        begun = optax.tree.where(replicas.due(step, period), mixed, begun)
        return mixed, Begun(begun)

    return averaged(
        "averaging.delayed_average", inner, mix, axis_name=axis_name, begin=begin
    )


def _checked(merge: Merge) -> Merge:
    """`merge` with answers of the worker's own shape and dtype."""

    def merged(own, begun, mean):
        mixed = merge(own, begun, mean)
        if getattr(mixed, "shape", None) != own.shape:
            raise TypeError(
                "`merge` must answer with an array like the worker's, of shape"
                f" {own.shape}, got {mixed!r}."
            )
        return mixed.astype(own.dtype)

    return merged


def dga(
    inner: optax.GradientTransformation,
    delay: int,
    *,
    axis_name: base.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DGA: a worker's own update now, in its place the mean of all d steps later.

        u_t = U(g^i_t)
        x^i <- x^i + u_t + (mean_j u^j_{t-d} - u_{t-d})

    so with SGD x^i <- x^i - eta g_t + eta (g_{t-d} - gbar_{t-d}). Models differ by
    their own last d updates, and by nothing else.

    Args:
        inner: the worker's own optimizer. It receives its worker's extra arguments as
            they come.
        delay: d, in steps, at least 1. Static. Without delay there is nothing to
            correct: that is `exchange.mean`.
        axis_name: of the workers; several names for several axes.

    Returns:
        A transformation such that `params + updates` is x^i. Its state holds d updates
        and an outbox (one update at d = 1) and `inner`, all the worker's own. Sends one
        update tree a step, by an all-reduce that depends on nothing that its step
        computes: a compiler may hide it behind the gradient. A worker waits for what
        the slowest had done d steps ago.

    Raises:
        ValueError: if `delay` is below 1, or (in `update`) a gradient is summed over
            the workers already.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = dga(optax.sgd(1.0), 1)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad), 0 * grad)
        ...     return first, first + tx.update(0 * grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-2., -2.], dtype=float32))

    References:
        Zhu et al., Delayed gradient averaging, NeurIPS 2021, as commonly reported.
    """
    delay = base.check_bound("delay", delay, at_least=1)

    def begin(params):
        own = base.vary(params, axis_name=axis_name)
        later = ring.init(own, delay) if delay > 1 else ()
        return Outbox(optax.tree.zeros_like(own), later)

    def mix(step, memory, before, model):
        del step
        own = replicas.towards(model, before)
        mean, own = replicas.mean_beside(own, memory.outbox, axis_name)
        mixed = jax.tree.map(lambda x, m, o: x + (m - o), model, mean, memory.outbox)
        if delay == 1:
            return mixed, Outbox(own, ())
        # slots that were never written are zeros: they correct nothing
        later = ring.push(memory.later, own)
        return mixed, Outbox(ring.read(later, delay - 1, own), later)

    return averaged("averaging.dga", inner, mix, axis_name=axis_name, begin=begin)
