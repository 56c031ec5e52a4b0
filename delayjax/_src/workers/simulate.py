"""One worker's step, simulated for all workers on one device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, checks, donation, kinds
from delayjax._src.workers.layout import Layout
from delayjax._src.workers.over_workers import by_vmap
from delayjax._src.workers.result_axes import workers_of
from delayjax._src.workers.state import Step, Workers, each


@kinds.checked
def simulate(
    step: Step,
    num_workers: int | tuple[int, ...],
    *,
    axis_name: axes.AxisName = "workers",
) -> Workers:
    """Runs one worker's step for P workers on one device, by `vmap`.

    A leaf of the state that is the same on all workers (parameters, the optimizer after
    the mean, counters) is held and computed once. A leaf that differs between workers
    (histories, outboxes, replicas) has a leading axis of P. JAX's types show which
    leaves differ: the step is traced with more and more varying leaves, until it
    returns the types that it was given.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, with collectives over
            `axis_name`. Take gradients at `vary(params)`, of the worker's own loss, and
            use `pmean` on metrics, not on the loss.
        num_workers: P; or a number for each of several axes, (groups, members).
        axis_name: the workers' axis; several names for several axes.

    Returns:
        `init(state, batch, shared=None)` makes the `WorkerState` from the state of one
        worker, made outside of any axis, and the batch of all workers for one step,
        leaves [P, ...] (arrays or shapes). `shared` says which parts must stay the same
        on all workers: a prefix tree of bools, or of names of axes. By default the
        first part of a pair (params, rest) must stay the same, or all leaves of another
        state. With `shared=False` each worker trains its own model.

        `step(workers_state, batch)` takes one step. `jit` it with the state donated, or
        scan it. A leaf or metric has a leading axis for each axis over which it
        differs.

    Raises:
        ValueError: in `init` and `step`, if a shared leaf would differ between workers
            after a step, or a gradient is summed over the workers because it was not
            taken at `vary(params)`.

    Example:
        >>> def step(x, batch):
        ...     grad = jax.lax.pmean(x - batch, "workers")
        ...     return x - 0.5 * grad, jnp.abs(x - batch)
        >>> two = simulate(step, 2)
        >>> held = two.init(jnp.zeros(()), jnp.zeros(2))
        >>> held, distance = two.step(held, jnp.asarray([1.0, 3.0]))
        >>> held.state, distance
        (Array(1., dtype=float32), Array([1., 3.], dtype=float32))
    """
    names = axes.as_names(axis_name)
    counts = num_workers if isinstance(num_workers, tuple) else (num_workers,)
    counts = tuple(checks.check_bound("num_workers", n, at_least=1) for n in counts)
    layout = Layout(dict(zip(names, counts, strict=True)))

    def hold(leaf, leaf_axes, spec):
        return jnp.broadcast_to(
            donation.copied(leaf), (*layout.sizes(leaf_axes), *jnp.shape(leaf))
        )

    def on_one(result_axes, held, batch):
        mapped: Any = functools.partial(
            by_vmap, step, layout.counts, *result_axes, held.specs
        )
        types = [jax.typeof(leaf).sharding for leaf in jax.tree.leaves(held.state)]
        if jax.sharding.get_abstract_mesh().explicit_axes:
            # `vmap` cannot sum arrays with Explicit axes in types (jax 0.10 to 0.12)
            specs = each(lambda _, sharding: sharding.spec, held.state, types)
            mapped = jax.sharding.auto_axes(mapped, out_sharding=(specs, P()))
        elif any(sharding.mesh.explicit_axes for sharding in types):
            raise ValueError("`workers_state` needs its mesh: use jax.set_mesh(mesh).")
        return mapped(held.state, batch)

    return workers_of(step, layout, hold, on_one)
