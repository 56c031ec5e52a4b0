"""Groups that change at every step and wait for no worker: WAGMA-SGD."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src import base, collectives
from delayjax._src.averaging import replicas
from delayjax._src.averaging.engine import averaged
from delayjax._src.ring import ring

Lateness = Callable[[jax.Array], ArrayLike]
"""step (int32 []) -> how many steps old this worker's model is that enters the step's
sum, int32 []; 0 on time. A bool counts as 0 or 1."""


class Sent(NamedTuple):
    """Memory of `wagma`."""

    sent: Any  # ring of the worker's last models, before mixing; () if none is late


def wagma(
    inner: optax.GradientTransformation,
    *,
    group_size: int | None = None,
    period: ArrayLike = 11,
    lateness: Lateness | None = None,
    max_lateness: int = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """WAGMA-SGD: averages in groups of S that change at every step.

    On worker i, with U(g) the step of its own optimizer,

        x'^i = x^i + U(g^i)
        s    = sum over j in group(i, t) of x'^j as it lies in j's send buffer
        x^i <- s / S                      on time: x'^i is in the sum
        x^i <- (s + x'^i) / (S + 1)       late: an older x'^i is
        x^i <- (1/P) sum_j x'^j           instead, where `period` divides t + 1

    A group is a butterfly: its sum is log2 S exchanges with the ranks whose number
    differs in one bit. The bits are the next log2 S of the log2 P in turn and wrap
    around at the end, so that a model reaches all others in log_S P steps where log2 S
    divides log2 P.

    Args:
        inner: the worker's own optimizer. It receives its worker's extra arguments as
            they come.
        group_size: S, a power of two, up to P. By default sqrt(P), or 2 sqrt(P / 2)
            where that is none.
        period: H, steps from one global average to the next. May be traced.
        lateness: the step -> how many steps old this worker's contribution is, as from
            `delays.per_worker(cluster.wait_avoiding(...).behind)`. By default all are
            on time. A rule of `exchange.partial_mean` says who is in time:
            `lambda step: ~participates(step)`.
        max_lateness: the oldest model that is kept, in steps; above it, as before the
            first, the oldest there is enters the sum. Static.
        axis_name: of the P workers, one name. P is a power of two.

    Returns:
        A transformation such that `params + updates` is x^i. Its state is `inner` and,
        where there is lateness, max_lateness + 1 models, all the worker's own. A worker
        sends log2 S models a step, to one of S - 1 others each, and waits for none;
        at the period's end it enters one all-reduce and waits for the slowest.

    Raises:
        ValueError: if S is no power of two, `period` or `max_lateness` below 1, or (in
            `update`) P is no power of two, S is above P, or a gradient is summed over
            the workers already.

    Example:
        >>> tx = wagma(optax.sgd(1.0))  # groups of 2: first {0, 1} and {2, 3}
        >>> def two_steps(x):
        ...     updates, state = tx.update(jnp.zeros(()), tx.init(x), x)
        ...     return x + updates, x + updates + tx.update(
        ...         jnp.zeros(()), state, x + updates)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([0.0, 2.0, 4.0, 6.0]))
        (Array([1., 1., 5., 5.], dtype=float32),
        Array([3., 3., 3., 3.], dtype=float32))

    References:
        Li et al., Breaking (global) barriers in parallel stochastic optimization with
        wait-avoiding group averaging, TPDS 32(7), 2021, arXiv:2005.00124. Butterflies
        and period as in its code Shigangli/WAGMA-SGD, which averages before the local
        step and counts an on-time model twice; this is the paper's rule.
    """
    axis_name = replicas.check_axis("averaging.wagma", axis_name)
    if group_size is not None:
        group_size = base.check_bound("group_size", group_size, at_least=1)
        if not _is_power_of_two(group_size):
            raise ValueError(
                f"`group_size` must be a power of two, got {group_size}: a butterfly"
                " pairs ranks by their bits."
            )
    period = replicas.check_period("period", period)
    max_lateness = base.check_bound("max_lateness", max_lateness, at_least=1)

    def begin(params):
        if lateness is None:
            return Sent(())
        own = base.vary(params, axis_name=axis_name)
        return Sent(ring.push(ring.init(own, max_lateness + 1), own))

    def mix(step, memory, before, model):
        del before
        butterflies = _butterflies(collectives.workers_of(axis_name), group_size)
        buffer, late = model, jnp.int32(0)
        if lateness is not None:
            sent = ring.push(memory.sent, model)
            memory = Sent(sent)
            late = lateness(step)
            late = base.check_answer("lateness(step)", late, jnp.integer, jnp.bool_)
            late = late.astype(jnp.int32)
            buffer = ring.read(sent, jnp.clip(late, 0, step + 1), model)

        def in_groups(bits):
            members = 2 ** len(bits)

            def group_mean(buffer, model):
                total = _sum_over(bits, buffer, axis_name)
                return jax.tree.map(
                    lambda s, x: jnp.where(
                        late > 0, (s + x) / (members + 1), s / members
                    ),
                    total,
                    model,
                )

            return group_mean

        def among_all(buffer, model):
            del buffer
            return base.vary(replicas.mean(model, axis_name), axis_name=axis_name)

        groups = [in_groups(bits) for bits in butterflies]
        due = replicas.due(step, period)
        if due is True:
            return among_all(buffer, model), memory
        chosen = jnp.where(due, len(groups), step % len(groups))
        both = base.vary((buffer, model), axis_name=axis_name)
        return jax.lax.switch(chosen, [*groups, among_all], *both), memory

    return averaged("averaging.wagma", inner, mix, axis_name=axis_name, begin=begin)


def _sum_over(bits: tuple[int, ...], tree: Any, axis_name: str) -> Any:
    """The sum over all ranks that differ in no other bits, by recursive doubling."""
    workers = jax.lax.axis_size(axis_name)
    for bit in bits:
        pairs = [(rank, rank ^ (1 << bit)) for rank in range(workers)]
        tree = jax.tree.map(jnp.add, tree, jax.lax.ppermute(tree, axis_name, pairs))
    return tree


def _butterflies(workers: int, group_size: int | None) -> list[tuple[int, ...]]:
    """The bits that differ within a group, for each of the steps until they recur."""
    if not _is_power_of_two(workers):
        raise ValueError(
            f"`averaging.wagma` needs a power of two of workers, got {workers}: a"
            " butterfly pairs ranks by their bits. Use averaging.sgp or d_psgd."
        )
    all_bits = workers.bit_length() - 1
    size = 2 ** ((all_bits + 1) // 2) if group_size is None else group_size
    if size > workers:
        raise ValueError(
            f"`group_size` must be at most the number of workers, {workers}, got"
            f" {size}."
        )
    bits = size.bit_length() - 1
    if bits == 0:
        return [()]
    patterns = all_bits // math.gcd(bits, all_bits)
    return [
        tuple((pattern * bits + phase) % all_bits for phase in range(bits))
        for pattern in range(patterns)
    ]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
