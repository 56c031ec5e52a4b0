"""Workarounds for XLA, each with its platform, its versions, its reason and its test.

A newer JAX may need none of them: try without one, and see whether its test passes.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.interpreters import batching, mlir

BITS = {
    jnp.dtype(jnp.bfloat16): jnp.dtype(jnp.uint16),
    jnp.dtype(jnp.float16): jnp.dtype(jnp.int16),
    jnp.dtype(jnp.float8_e4m3fn): jnp.dtype(jnp.uint8),
    jnp.dtype(jnp.float8_e5m2): jnp.dtype(jnp.int8),
}
"""Narrow floating-point types, and the integers that hold their bits.

For: CPU, jax 0.10. Try without it at: 0.11.
XLA computes with these types in float32 there. At every write it would convert a whole
ring to float32 and back. It does not convert integers.
Shown by: `test_a_step_costs_the_same_whatever_the_depth`.
"""
FLOATS = {bits: dtype for dtype, bits in BITS.items()}


def as_bits(leaf: Any, dtype: Any) -> jax.Array:
    """An array as `dtype`, or as the float whose bits `dtype` holds (`BITS`)."""
    if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and dtype in FLOATS:
        leaf = without_derivative(leaf, FLOATS[dtype].name)
        return jax.lax.bitcast_convert_type(jnp.asarray(leaf, FLOATS[dtype]), dtype)
    return jnp.asarray(leaf, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def without_derivative(leaf: Any, kind: str) -> Any:
    """`leaf`; its derivative raises an error that names the `kind` of the history."""
    return leaf


@without_derivative.defjvp
def _refuse(kind: str, primals: Any, tangents: Any) -> Any:
    raise TypeError(
        f"A history in {kind} has no derivative: use float32 parameters and the default"
        " history, or history=ring.cast(jnp.float32)."
    )


def from_bits(kept: jax.Array, dtype: Any) -> jax.Array:
    """The inverse of `as_bits`, for an array whose dtype was `dtype`."""
    if jnp.issubdtype(dtype, jnp.floating) and kept.dtype in FLOATS:
        kept = jax.lax.bitcast_convert_type(kept, FLOATS[kept.dtype])
    return kept.astype(dtype)


def zeros_sharded_as(leaf: Any, dtype: Any) -> jax.Array:
    """Zeros with the shape and the sharding of `leaf`, also inside `jit`.

    For: all platforms, jax 0.10. Try without it at: 0.11.
    In a compiled program a constant has no sharding, so every device would hold a whole
    history. A value that is computed from `leaf` has the sharding of `leaf`.
    Shown by: `test_a_compiled_init_shards_the_history_as_its_parameters`.
    """
    zeros = jnp.zeros_like(leaf, dtype=dtype)
    if isinstance(leaf, jax.core.Tracer):
        zeros = jnp.where(leaf == leaf, zeros, zeros)
    return zeros


def sharded_as(leaf: jax.Array, like: jax.Array) -> jax.Array:
    """`leaf`, with the sharding of `like`, an array of its shape.

    For: all platforms, jax 0.10. Try without it at: 0.11.
    After products of matrices XLA chooses the sharding of a result over Auto axes, and
    may gather the updates of a sharded parameter. A value that is computed from both
    arrays, entry by entry, has the sharding of `like`.
    Shown by: `test_a_side_lies_on_the_devices_as_its_rows_or_columns_do`.
    """
    return jnp.where(like == like, leaf, leaf)


def each_in_turn(function: Any, *rows: Any) -> Any:
    """`vmap(function)(*rows)`; on a CPU it is a loop.

    For: CPU, jax 0.10. Try without it at: 0.11.
    `vmap` reads faster, but XLA then holds a second history during a step.
    Shown by: `test_a_step_holds_no_second_history_and_copies_none`.
    """
    return jax.lax.platform_dependent(
        *rows,
        cpu=lambda *each: jax.lax.map(lambda one: function(*one), each),
        default=jax.vmap(function),
    )


def factored(factor: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """`factor(x)` of matrices [..., m, n]; a CPU factors one matrix after the other.

    For: CPU, jax 0.10. Try without it at: 0.11.
    The factorization of a batch occupies a thread of XLA there and waits for other
    threads. If every thread factors a batch, all wait forever.
    Shown by: `test_many_batches_are_factored_in_one_program`.
    """
    one = jax.custom_batching.sequential_vmap(factor)
    for _ in x.shape[:-2]:
        one = jax.vmap(one)
    return jax.lax.platform_dependent(x, cpu=one, default=factor)


def sums_under_way(sent: list[jax.Array], came: list[jax.Array], meanwhile: Any) -> Any:
    """The sums `came` of `sent`, which are used only after `meanwhile` is computed.

    Returns `came` and `meanwhile`. Without this function a compiler would use the sums
    before the computation that should hide them.

    For: TPU and GPU, jax 0.10 to 0.12. Try without it at: 0.13.
    A barrier is over the sums and one array of `meanwhile`, the last. A barrier over
    all of them would take more memory traffic: XLA then copies the whole of `sent`,
    whose memory `meanwhile` is to have.
    Shown by: `tests/experiments/pods/compile_pod_test.py`.

    For: CPU, jax 0.10. Try without it at: 0.11.
    XLA assigns memory as if a program ran in its written order. It would give the
    memory of `sent` and `came` to results of `meanwhile`, whose computation would then
    wait for the sums. So a loop uses these arrays until both are done. The loop never
    runs, but the compiler cannot see that. Its condition reads an entry of an array.
    Where the mesh has further axes, that entry may be on another device: then there is
    no loop.
    Shown by: `benchmarks/overlap.py`.
    """

    def entry(leaf):
        return leaf.ravel()[0].real.astype(jnp.float32)

    def on_cpu(sent, came, meanwhile):
        some = next(entry(leaf) for leaf in came if leaf.size)
        bits = jax.lax.bitcast_convert_type(some, jnp.int32)

        def again(sent):
            return sum(entry(x) for x in sent if x.size) > 0

        def body(carry):
            _, sent, *rest = carry
            return again(sent), *jax.tree.map(jnp.negative, (sent, *rest))

        carry = ((bits | 1) == 0) & again(sent), sent, came, meanwhile
        return jax.lax.while_loop(lambda carry: carry[0], body, carry)[2:]

    def elsewhere(sent, came, meanwhile):
        *others, last = jax.tree.leaves(meanwhile)
        *came, last = barrier([*came, last])
        return came, jax.tree.unflatten(jax.tree.structure(meanwhile), [*others, last])

    if not came or not jax.tree.leaves(meanwhile):
        return came, meanwhile
    if has_further_axes() or not any(leaf.size for leaf in came):
        return elsewhere(sent, came, meanwhile)
    return jax.lax.platform_dependent(
        *(sent, came, meanwhile), cpu=on_cpu, default=elsewhere
    )


def psum(tree: Any, axis_name: Any) -> Any:
    """`jax.lax.psum`; it sums bfloat16 in float32 where a CPU's mesh has further axes.

    For: CPU, jax 0.10 to 0.12. Try without it at: 0.13.
    XLA promotes such sums itself. Where the mesh has Auto axes it fails and ends the
    process ("Invalid binary instruction opcode copy").
    Shown by: `test_bfloat16_is_summed_beside_a_model_axis`.
    """
    if not any(map(_must_be_promoted, jax.tree.leaves(tree))):
        return jax.lax.psum(tree, axis_name)
    return jax.tree.map(
        lambda x: _promoted(lambda y: jax.lax.psum(y, axis_name), x), tree
    )


def psum_scatter(leaf: Any, axis_name: str, along: int) -> jax.Array:
    """`jax.lax.psum_scatter`, tiled; bfloat16 is summed as in `psum`."""

    def scattered(x):
        return jax.lax.psum_scatter(x, axis_name, scatter_dimension=along, tiled=True)

    return _promoted(scattered, leaf)


def _must_be_promoted(leaf: jax.Array) -> bool:
    return leaf.dtype == jnp.bfloat16 and has_further_axes()


def _promoted(summed: Callable[[jax.Array], jax.Array], leaf: jax.Array) -> jax.Array:
    if not _must_be_promoted(leaf):
        return summed(leaf)
    return jax.lax.platform_dependent(
        leaf,
        cpu=lambda x: summed(x.astype(jnp.float32)).astype(x.dtype),
        default=summed,
    )


def barrier(arrays: list[jax.Array]) -> list[jax.Array]:
    """`jax.lax.optimization_barrier` that keeps the type of each array.

    For: all platforms, jax 0.10 to 0.12. Try without it at: 0.13.
    Under `shard_map`, if one of the arrays differs between workers, JAX's own barrier
    types all its results as different.
    Shown by: `test_the_mean_of_all_workers_is_one_step_late`.
    """
    return _barrier().bind(*arrays)


@functools.cache
def _barrier() -> Any:
    # imported here, because it takes a fifth of the time of `import delayjax`
    from jax.extend.core import Primitive

    one = Primitive("barrier_of_each")
    one.multiple_results = True
    one.def_impl(lambda *arrays: list(arrays))
    one.def_abstract_eval(lambda *types: list(types))
    together = mlir.lower_fun(
        lambda *arrays: jax.lax.optimization_barrier(arrays), multiple_results=True
    )
    mlir.register_lowering(one, together)
    batching.primitive_batchers[one] = lambda arrays, axes: (one.bind(*arrays), axes)
    return one


def has_further_axes() -> bool:
    """Whether the mesh has further axes, over which a worker's leaves may lie."""
    mesh = jax.sharding.get_abstract_mesh()
    further = set(mesh.axis_names) - set(mesh.manual_axes)
    return any(mesh.shape[name] > 1 for name in further)


SMALL = 2**14
"""Leaves with fewer entries are seldom sharded over a mesh: a bias, a scale."""


def may_be_sharded(leaf: Any) -> bool:
    """Whether a leaf may be sharded over axes besides the workers'.

    For: all platforms, jax 0.10 to 0.12. Try without it at: 0.13.
    The type of a leaf shows how it is sharded over Explicit axes, but not over Auto
    axes. Over these, each leaf that is not `SMALL` may be sharded.
    Shown by: `test_leaves_that_are_whole_are_sent_together`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if any(mesh.shape[name] > 1 for name in mesh.auto_axes) and leaf.size >= SMALL:
        return True
    spec = jax.typeof(leaf).sharding.spec
    return any(part is not None for part in spec.partitions)
