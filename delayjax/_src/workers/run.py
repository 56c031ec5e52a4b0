"""One worker's step, run on many devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.ground import axes, donation, kinds, shardings
from delayjax._src.workers.layout import Layout
from delayjax._src.workers.over_workers import first, of_part
from delayjax._src.workers.result_axes import workers_of
from delayjax._src.workers.state import Step, Workers, each, is_on_host


@kinds.checked
def run(step: Step, mesh: Mesh, *, axis_name: axes.AxisName = "workers") -> Workers:
    """Runs one worker's step on every device along a mesh axis, by `shard_map`.

    The step and the state are the same as in `simulate`, and the numbers agree.

    Args:
        step: (state, batch) -> (state, metrics) of one worker, as in `simulate`.
        mesh: devices, with this axis, or several axes. Over its other axes each leaf
            of the state keeps the sharding that it had in `init`. Axes may be Auto or
            Explicit.
        axis_name: the workers' axis, or several axes.

    Returns:
        The same as `simulate`. `init` also places the state: each device holds the
        shared leaves, and its worker's part of the other leaves. Place batches over
        `axis_name` along their first dimension, or they move at each step. On CPU
        devices XLA copies a history that differs between workers at each step. Call
        `init` outside of `jit`: inside, JAX does not show how arrays are sharded over
        Auto axes, and each device would hold the whole of such arrays.

    Example:
        >>> from jax.sharding import AxisType
        >>> mesh = jax.make_mesh((1,), ("workers",), axis_types=(AxisType.Auto,))
        >>> one = run(lambda x, b: (x - jax.lax.pmean(b, "workers"), {}), mesh)
        >>> held = one.init(jnp.zeros(()), jnp.ones(1))
        >>> one.step(held, jnp.ones(1))[0].state
        Array(-1., dtype=float32)
    """
    names = axes.as_names(axis_name)
    axes.check_mesh(mesh, names)
    layout = Layout({name: mesh.shape[name] for name in names}, mesh)
    explicit = mesh.abstract_mesh.explicit_axes
    if set(explicit) - set(names) and set(names) - set(explicit):
        raise ValueError(
            f"`mesh` must have workers' axes {names} of type Explicit, if others are,"
            f" got {mesh}: make it with axis_types=(AxisType.Auto, ...)."
        )

    def place(leaf, leaf_axes, spec):
        shape = (*layout.sizes(leaf_axes), *jnp.shape(leaf))
        if explicit:  # with all dimensions, as in the types of the step's results
            spec = P(*spec, *(None,) * (jnp.ndim(leaf) - len(spec)))
        held = NamedSharding(mesh, P(*leaf_axes, *spec))
        if is_on_host(leaf):  # it may not fit on a device
            whole = np.broadcast_to(np.asarray(leaf), shape)
            leaf = jax.make_array_from_callback(
                shape, held.with_memory_kind("pinned_host"), whole.__getitem__
            )
            return jax.device_put(leaf, jax.memory.Space.Host)
        leaf = _put(donation.copied(leaf), NamedSharding(mesh, spec))
        if not leaf_axes:
            return leaf
        return jax.jit(jnp.broadcast_to, static_argnums=1, out_shardings=held)(
            leaf, shape
        )

    def on_devices(result_axes, held, batch):
        def widen(leaf, leaf_axes):
            return jnp.expand_dims(leaf, first(leaf_axes))

        def of_one(state, batch):
            placed = shardings.keeping(step, held.specs)
            state, metrics = of_part(placed, result_axes.state, names)(state, batch)
            metrics = jax.tree.map(widen, metrics, result_axes.metrics)
            return each(widen, state, result_axes.state), metrics

        # `shard_map` itself moves nothing along Explicit axes
        state = each(layout.typed, held.state, result_axes.state)
        batch = jax.tree.map(lambda leaf: layout.typed(leaf, names), batch)
        specs = each(lambda _, leaf_axes: P(*leaf_axes), state, result_axes.state)
        return jax.shard_map(
            of_one,
            mesh=mesh,
            in_specs=(specs, P(*names)),
            out_specs=(specs, result_axes.metrics),
            axis_names=set(names),
        )(state, batch)

    return workers_of(step, layout, place, on_devices)


def _put(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """`device_put`, also for typed keys on several processes."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.device_put(leaf, sharding)
    data = jax.device_put(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
