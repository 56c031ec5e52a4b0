"""An all-reduce that is one step late, for a training step in plain `jit`."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from delayjax._src.exchange.overlapped import Held, one_step_late
from delayjax._src.ground import (
    axes,
    collectives,
    kinds,
    named_arrays,
    shardings,
    transforms,
    trees,
)


@kinds.checked
def late_reduce(
    inner: transforms.Transformation,
    mesh: Mesh,
    *,
    axis_name: axes.AxisName = "data",
    keep_params: bool = False,
    bucket_bytes: int = collectives.BUCKET_BYTES,
) -> optax.GradientTransformationExtraArgs:
    """`overlapped_mean` for a training step in plain `jit`, without an axis of workers.

        update_t = inner( (1/n) sum_s g_s[t - 1] ),    update_0 = 0

    with g_s the mean gradient on shard s of n. `update` needs gradients that are not
    summed over the shards yet, in one of two forms:

    - *one for each shard*, leaves [n, *shape]: `jax.grad` of each part of the batch by
      `jax.vmap`, as in the example. This works with any model and mesh.
    - *unreduced*, leaves of the parameters' shape, on a mesh of Explicit axes: take
      `jax.grad` of the loss of the whole batch, at parameters whose type is
      `reduced` over the axis: `jax.reshard(p, P(..., reduced={"data"}))`.

    For longer delays use `delayed(overlapped_mean(inner), d)` in `workers.run`.

    Args:
        inner: the transformation behind the sum, as in `overlapped_mean`.
        mesh: the devices; all axes of type Auto, or all of type Explicit.
        axis_name: the axis of the mesh over which the batch is sharded, or several.
        keep_params: as in `overlapped_mean`.
        bucket_bytes: smaller leaves are joined and sent together, as in `mean`.

    Returns:
        A transformation whose state holds the gradient of each shard on its device,
        leaves [n, *shape], and with `keep_params` one parameter tree. The updates are
        sharded as the parameters; if parameters are sharded over `axis_name` itself,
        call `update(grads, state, params)`.

    Example:
        >>> auto = (jax.sharding.AxisType.Auto,)
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=auto)
        >>> tx = late_reduce(optax.sgd(1.0), mesh)
        >>> loss = lambda x, batch: jnp.mean((x - batch) ** 2) / 2
        >>> def step(x, state, parts):  # one for each device
        ...     grads = jax.vmap(jax.grad(loss), (None, 0))(x, parts)
        ...     return tx.update(grads, state, x)
        >>> x = jnp.asarray(3.0)
        >>> first, state = step(x, tx.init(x), jnp.asarray([[1.0, 0.0]]))
        >>> first, step(x, state, jnp.asarray([[7.0, 9.0]]))[0]
        (Array(0., dtype=float32), Array(-2.5, dtype=float32))
    """
    names = axes.as_names(axis_name)
    axes.check_mesh(mesh, names)
    shards = math.prod(mesh.shape[name] for name in names)
    # in a traced `init` zeros are not on a device yet
    auto = AxisType.Auto in mesh.axis_types
    place = jax.lax.with_sharding_constraint if auto else jax.device_put
    further = set(mesh.axis_names) - set(names)

    def empty(params):
        def nothing(p):
            beside = shardings.over(further, shardings.sharding_of(p).spec)
            held = NamedSharding(mesh, P(names, *beside))
            shape = shards, *jnp.shape(p)
            return place(jnp.zeros(shape, jnp.result_type(p), device=held), held)

        zeros = [nothing(p) for p in jax.tree.leaves(params)]
        return named_arrays.stacked(params, zeros)

    specs = {"in_specs": P(names), "out_specs": (P(), P(names))}

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, axis_names=set(names), **specs)
    def exchange(left, fresh):
        left, fresh = jax.tree.map(lambda g: g.squeeze(0), (left, fresh))
        total, fresh = collectives.sums_beside(fresh, left, names, bucket_bytes)
        return [g / shards for g in total], [jnp.expand_dims(g, 0) for g in fresh]

    def send(held, updates, params):
        trees.check_gradients(updates)
        left, boxed = jax.tree.flatten(held.gradient)
        paths, structure = jax.tree.flatten_with_path(updates)
        fresh = [
            shardings.as_typed(_of_each_shard(path, g, like, names, mesh), like)
            for (path, g), like in zip(paths, left, strict=True)
        ]
        mean, fresh = exchange(left, fresh)
        if params is not None:
            targets = jax.tree.leaves(params)
            mean = [
                shardings.as_typed(g, p) for g, p in zip(mean, targets, strict=True)
            ]
        mean = jax.tree.unflatten(structure, mean)
        age = jnp.int32(0) if held.age is None else held.age
        return Held(mean, age, held.value), jax.tree.unflatten(boxed, fresh)

    return one_step_late("exchange.late_reduce", inner, empty, send, names, keep_params)


def _of_each_shard(
    path: Any, gradient: Any, like: jax.Array, names: tuple[str, ...], mesh: Mesh
) -> jax.Array:
    """The gradients of the shards, [n, *shape]; their mean is `gradient`."""
    if jnp.shape(gradient) == like.shape:
        return jnp.asarray(gradient, like.dtype)
    spec = jax.typeof(gradient).sharding.spec
    if jnp.shape(gradient) != like.shape[1:] or spec.unreduced != frozenset(names):
        got = jax.typeof(gradient).str_short(short_dtypes=True)
        raise ValueError(
            "`exchange.late_reduce` needs gradients that are not summed over"
            f" {', '.join(names)} yet, of shape {like.shape}, got {got} at"
            f" {trees.path_name(path)}: take jax.vmap(jax.grad(loss), (None, 0))("
            "params, parts of the batch)."
        )
    # only a cast: each device holds its shard's gradient over n
    parts = spec.partitions
    rest = (*parts, *(None,) * (gradient.ndim - len(parts)))
    return jax.shard_map(
        lambda part: jnp.expand_dims(part * like.shape[0], 0).astype(like.dtype),
        mesh=mesh,
        in_specs=spec,
        out_specs=P(names, *rest),
        check_vma=False,
    )(gradient)
