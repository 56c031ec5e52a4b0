"""Averages in small groups that wait for no worker: WAGMA-SGD."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import means, periods
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, collectives, kinds, transforms
from delayjax._src.history import ring


class Sent(NamedTuple):
    """Memory of `wagma`."""

    sent: Any  # ring of the worker's last models before mixing; () without `lateness`


@kinds.checked
def wagma(
    inner: transforms.Transformation,
    *,
    group_size: kinds.PowerOfTwo | None = None,
    period: kinds.Count = 11,
    lateness: Callable[[jax.Array], ArrayLike] | None = None,
    max_lateness: kinds.PositiveInt = 1,
    axis_name: str = "workers",
) -> optax.GradientTransformationExtraArgs:
    """WAGMA-SGD: averages in groups of S workers that change at every step.

    On worker i, with its own optimizer U:

        x'^i = x^i + U(g^i)
        s    = sum over j in group(i, t) of the model x'^j in j's send buffer
        x^i <- s / S                      on time: the buffer holds the new x'^i
        x^i <- (s + x'^i) / (S + 1)       late: the buffer holds an older x'^i
        x^i <- (1/P) sum_j x'^j           instead, where `period` divides t + 1

    A group is a butterfly: its sum takes log2 S exchanges, each with the rank that
    differs in one bit. Each step takes the next log2 S of the log2 P bits, so a model
    reaches all workers in log_S P steps if log2 S divides log2 P.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        group_size: S, a power of two, up to P. By default sqrt(P), or 2 sqrt(P / 2) if
            sqrt(P) is no integer.
        period: H, steps from one global average to the next, at least 1. May be traced.
        lateness: step -> the age in steps of this worker's contribution, int32 [], as
            `delays.per_worker(cluster.wait_avoiding(...).behind)`, or whether it is
            late, bool [], as `lambda step: ~participates(step)`. By default 0.
        max_lateness: the largest age of a model that is kept, in steps, at least 1.
            Instead of an older model the oldest kept model enters the sum. Static.
        axis_name: the axis of the P workers, one name. P is a power of two.

    Returns:
        A transformation whose state holds `inner` and, with `lateness`, max_lateness +
        1 models for each worker. Workers wait for each other only at the end of a
        period.

    Example:
        >>> tx = wagma(optax.sgd(1.0))  # groups of 2: first {0, 1} and {2, 3}
        >>> def step(x):
        ...     return x + tx.update(jnp.zeros(()), tx.init(x), x)[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([0.0, 2.0, 4.0, 6.0]))
        Array([1., 1., 5., 5.], dtype=float32)

    References:
        Li et al., Wait-avoiding group averaging, TPDS 32(7), 2021, arXiv:2005.00124;
        butterflies and period as in its code Shigangli/WAGMA-SGD.
    """

    def begin(params):
        if lateness is None:
            return Sent(())
        model = axes.vary(params, axis_name=axis_name)
        return Sent(ring.push(ring.init(model, max_lateness + 1), model))

    def mix(step, memory, before, model):
        workers = collectives.workers_of(axis_name)
        butterflies = _butterflies(workers, group_size)
        buffer, late = model, jnp.int32(0)
        if lateness is not None:
            for slots in jax.tree.leaves(memory.sent.slots):
                checks.check_held("max_lateness", max_lateness, len(slots) - 1)
            memory = Sent(ring.push(memory.sent, model))
            late = lateness(step)
            late = checks.as_scalar("lateness(step)", late, jnp.integer, jnp.bool_)
            late = late.astype(jnp.int32)
            buffer = ring.read(memory.sent, jnp.clip(late, 0, step + 1), model)

        def in_group(bits, buffer, model):
            members = 2 ** len(bits)

            def mean(s, x):
                return jnp.where(late > 0, (s + x) / (members + 1), s / members)

            for bit in bits:  # a sum by recursive doubling
                pairs = [(rank, rank ^ (1 << bit)) for rank in range(workers)]
                other = jax.lax.ppermute(buffer, axis_name, pairs)
                buffer = jax.tree.map(jnp.add, buffer, other)
            return jax.tree.map(mean, buffer, model)

        def among_all(buffer, model):
            return axes.vary(means.mean(model, axis_name), axis_name=axis_name)

        due = periods.due(step, period)
        if due.always:
            return among_all(buffer, model), memory
        groups = [functools.partial(in_group, bits) for bits in butterflies]
        chosen = jnp.where(due.now, len(groups), step % len(groups))
        both = axes.vary((buffer, model), axis_name=axis_name)
        return jax.lax.switch(chosen, [*groups, among_all], *both), memory

    return step_then_mix("averaging.wagma", inner, mix, axis_name, begin)


def _butterflies(workers: int, group_size: int | None) -> list[tuple[int, ...]]:
    """For each step, until the groups repeat, the bits that differ within a group."""
    checks.check_power_of_two("the number of workers", workers)
    all_bits = workers.bit_length() - 1
    size = 2 ** ((all_bits + 1) // 2) if group_size is None else group_size
    if size > workers:
        raise ValueError(f"`group_size` must be at most {workers}, got {size}.")
    bits = size.bit_length() - 1
    if bits == 0:
        return [()]
    return [
        tuple((first + phase) % all_bits for phase in range(bits))
        for first in range(0, math.lcm(bits, all_bits), bits)
    ]
