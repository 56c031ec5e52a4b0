"""SGP: workers push shares of sums and weights."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import periods
from delayjax._src.averaging.neighbors import neighborhood, received
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, dtypes, kinds, transforms


class PushSum(NamedTuple):
    """Memory of `sgp`."""

    weight: jax.Array  # w^i, the worker's own, float []


@kinds.checked
def sgp(
    inner: transforms.Transformation,
    *,
    peers: kinds.PositiveInt = 1,
    participates: Callable[[jax.Array], ArrayLike] | None = None,
    period: kinds.Count = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """SGP: stochastic gradient push on an exponential graph.

    The worker's model z^i is a sum x^i divided by its weight w^i, which starts at 1 and
    is kept in the state. With shares c = 1 / (1 + peers),

        x'^i = w^i z^i + U(g^i)
        x^i <- c x'^i + c sum_k x'^{i - h_k},    w^i <- c w^i + c sum_k w^{i - h_k}
        z^i  = x^i / w^i

    with hops h_k = 2^((r + k) mod L), k = 0, ..., peers - 1, at the r-th exchange, L =
    log2 P rounded up. A worker that does not send keeps its whole share, so the sums of
    x and of w are conserved. A worker that sends but never receives loses its weight:
    its step grows as 1 / w^i, and it diverges.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        peers: the number of other workers that a worker sends to, from 1 to L.
        participates: step (int32 []) -> whether this worker sends, bool [], as in
            `exchange.partial_mean`. By default all workers send.
        period: H, local steps from one exchange to the next, at least 1. May be traced.
        axis_name: the workers' axis, one name.

    Example:
        >>> tx = sgp(optax.sgd(1.0),
        ...     participates=lambda step: jax.lax.axis_index("workers") == 1)
        >>> def step(z):
        ...     updates, state = tx.update(jnp.zeros(()), tx.init(z), z)
        ...     return z + updates, state.memory.weight
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 4.0]))
        (Array([2., 4.], dtype=float32), Array([1.5, 0.5], dtype=float32))

    References:
        Assran et al., ICML 2019, arXiv:1811.10792, algorithm 1; hops and shares of two
        peers as in the code Shigangli/WAGMA-SGD. Workers that do not send are ours.
    """

    def begin(params):
        kind = dtypes.real_dtype(params)
        return PushSum(axes.vary(jnp.ones((), kind), axis_name=axis_name))

    def mix(step, memory, before, model):
        workers, _ = neighborhood("averaging.sgp", axis_name)
        exponents = (workers - 1).bit_length()
        if peers > exponents:
            raise ValueError(
                f"`peers` must be at most {exponents}, the hops of {workers} workers,"
                f" got {peers}."
            )
        sending = True if participates is None else participates(step)
        sending = checks.as_scalar("participates(step)", sending, jnp.bool_)
        # in at least float32: three shares of 1/3 in bfloat16 sum to 1.002
        share = jnp.asarray(1 / (1 + peers), memory.weight.dtype)
        sources = [(np.arange(workers) - 2**e) % workers for e in range(exponents)]

        def exchange(sum_and_weight):
            out = dtypes.scaled(jnp.where(sending, share, 0.0), sum_and_weight)
            kept = dtypes.scaled(jnp.where(sending, share, 1.0), sum_and_weight)
            first = step // period
            for k in range(peers):
                came = received(out, sources, (first + k) % exponents, axis_name)
                kept = jax.tree.map(jnp.add, kept, came)
            return kept

        # w z + U: the weight does not scale U
        total = jax.tree.map(
            lambda z, x: (memory.weight * z + (x - z)).astype(z.dtype), before, model
        )
        total, weight = periods.when(
            periods.due(step, period), exchange, (total, memory.weight), axis_name
        )
        mixed = jax.tree.map(lambda x: (x / weight).astype(x.dtype), total)
        return mixed, PushSum(weight)

    return step_then_mix("averaging.sgp", inner, mix, axis_name, begin)
