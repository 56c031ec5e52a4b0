"""The vocabulary that producers and consumers of staleness share."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import named_arrays

Schedule = Callable[[Any], ArrayLike]
"""step (int32 []) -> a number, as in Optax."""

Delay = ArrayLike | Schedule | Mapping[Any, Any] | Sequence[Any]
"""A delay in updates: an int, an integer scalar, a `Schedule`, or a tree of these."""

Transformation = optax.GradientTransformation | optax.MultiSteps
"""What stands inside of a wrapper."""

Law = Callable[[jax.Array], ArrayLike]
"""staleness (int32 [], or float32 [] for a mean) -> the factor of the updates."""

AxisName = str | tuple[str, ...]
"""The workers' axis, or several axes that number the workers together."""


def vary(tree: Any, *, axis_name: AxisName = "workers") -> Any:
    """Marks `tree` as different on each worker. No value changes.

    Under `shard_map` JAX sums a gradient at replicated parameters over the workers, and
    a later mean does nothing. Take gradients at `vary(params)` instead. Under `vmap`,
    and outside of any axis, this function does nothing.

    Args:
        tree: arrays, usually the parameters.
        axis_name: the workers' axis, or several axes, over which the types then vary.

    Example:
        >>> vary({"w": jnp.ones(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    manual = jax.sharding.get_abstract_mesh().manual_axes
    names = tuple(name for name in as_names(axis_name) if name in manual)

    def own(leaf):
        missing = tuple(n for n in names if n not in varies_over(leaf))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(own, tree) if names else tree


def typed_like(tree: Any, like: Any) -> Any:
    """`tree`, where each leaf varies over the axes of the same leaf of `like`."""

    def typed(leaf, other):
        axes = tuple(varies_over(other))
        return vary(leaf, axis_name=axes) if axes else leaf

    return jax.tree.map(typed, tree, like)


def vary_as(params: Any, state: Any) -> Any:
    """A state that varies over all axes over which the parameters do."""
    axes = {axis for leaf in jax.tree.leaves(params) for axis in varies_over(leaf)}
    return vary(state, axis_name=tuple(sorted(axes))) if axes else state


def real_dtype(tree: Any) -> jnp.dtype:
    """A real dtype, at least float32 and as exact as the leaves of `tree`."""
    return jnp.finfo(wide_dtype(*jax.tree.leaves(tree))).dtype


def wide_dtype(*leaves: Any) -> np.dtype:
    """The floating dtype, at least float32, that holds what all leaves hold."""
    return _floating([np.dtype(np.float32), *map(jnp.result_type, leaves)])


def wide(leaf: Any) -> jax.Array:
    """A leaf in at least float32."""
    return jnp.asarray(leaf, wide_dtype(leaf))


def alike(*leaves: Any) -> list[jax.Array]:
    """Leaves in one floating dtype, the widest; Python's numbers stay as they are.

    JAX does the same by default, but not with `jax_numpy_dtype_promotion="strict"`.
    """
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    strong = [x.dtype for x in arrays if not x.weak_type]
    if not strong:
        return arrays
    exact = _floating(strong)
    return [x if x.weak_type else x.astype(exact) for x in arrays]


def times(factor: ArrayLike, leaf: jax.Array) -> jax.Array:
    """The product, computed in the wider of the dtypes, in the dtype of the leaf."""
    factor, exact = alike(factor, leaf)
    return (factor * exact).astype(leaf.dtype)


def _floating(dtypes: Iterable[Any]) -> np.dtype:
    floats = [np.dtype(x) for x in dtypes if jnp.issubdtype(x, jnp.inexact)]
    return functools.reduce(
        np.promote_types, floats or [np.dtype(jnp.result_type(float))]
    )


def varies_over(leaf: Any) -> frozenset[str]:
    """The manual axes over which the type of an array varies."""
    return jax.typeof(leaf).manual_axis_type.varying


def as_names(axis_name: AxisName) -> tuple[str, ...]:
    """One or several axis names, as a tuple."""
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    is_named = isinstance(names, tuple) and all(isinstance(n, str) and n for n in names)
    if not is_named or not names or len(set(names)) < len(names):
        raise TypeError(
            f"`axis_name` must be a name or a tuple of names, got {axis_name!r}."
        )
    return names


def require(value: Any, name: str, needed_by: str, remedy: str) -> Any:
    """`value`, or an error that says which extra argument `needed_by` lacks."""
    if value is None:
        raise TypeError(
            f"`{needed_by}` needs the extra argument `{name}`, but received none:"
            f" {remedy}, or pass `{name}=` to `update`."
        )
    return value


def as_transformation(name: str, inner: Any) -> optax.GradientTransformationExtraArgs:
    """`inner` (also a `MultiSteps`) as a transformation that takes extra arguments."""
    update = getattr(inner, "update", None)
    steps = getattr(update, "__self__", None)
    if isinstance(steps, optax.MultiSteps):
        # MultiSteps.gradient_transformation() drops extra arguments
        method: Any = steps.update
        return optax.GradientTransformationExtraArgs(steps.init, method)
    if not callable(update) or not hasattr(inner, "init"):
        raise TypeError(
            f"`{name}` must be an Optax transformation, got {inner!r}: pass for example"
            " optax.sgd(0.1)."
        )
    return optax.with_extra_args_support(inner)


def broadcast(name: str, prefix: Any, tree: Any) -> Any:
    """`prefix` with one value for each leaf of `tree`; boxes in either are ignored."""
    bare, whole = named_arrays.unboxed((prefix, tree))
    leaves, wanted = jax.tree.flatten(whole)
    places = jax.tree.unflatten(wanted, list(range(len(leaves))))
    try:
        values, structure = jax.tree.flatten(_as_dicts(bare), is_leaf=is_function)
        parts = structure.flatten_up_to(_as_dicts(places))
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be one value or a prefix of the tree"
            f" {wanted}, got {bare!r}."
        ) from error
    repeated: list[Any] = [None] * len(leaves)
    for value, part in zip(values, parts, strict=True):
        for place in jax.tree.leaves(part):
            repeated[place] = value
    return jax.tree.unflatten(jax.tree.structure(tree), repeated)


def _as_dicts(tree: Any) -> Any:
    """`tree` with dictionaries in place of other mappings, such as `nnx.State`."""

    def is_mapping(node):
        return isinstance(node, Mapping) and type(node) is not dict

    def as_dict(node):
        if not is_mapping(node):
            return node
        return {key: _as_dicts(value) for key, value in node.items()}

    return jax.tree.map(as_dict, tree, is_leaf=is_mapping)


def is_function(node: Any) -> bool:
    """Whether a node of a tree is a function. A callable model is a tree instead."""
    is_partial = isinstance(node, jax.tree_util.Partial)
    return is_partial or (callable(node) and jax.tree_util.all_leaves([node]))


def is_leaf(tree: Any) -> bool:
    """Whether a tree is one value. A function is one value."""
    return jax.tree_util.all_leaves([tree], is_leaf=is_function)


def path_name(path: Any) -> str:
    """The name of a leaf in an error."""
    return jax.tree_util.keystr(path) or "the root"


def masked_like(tree: Any, updates: Any) -> Any:
    """`tree` (an extra argument) masked as `optax.masked` masked the updates."""

    def is_masked(node):
        return isinstance(node, optax.MaskedNode)

    if not any(map(is_masked, jax.tree.leaves(updates, is_leaf=is_masked))):
        return tree
    return jax.tree.map(
        lambda update, part: update if is_masked(update) else part,
        *(updates, tree),
        is_leaf=is_masked,
    )


def as_array(name: str, values: Any) -> Any:
    """`values` as a NumPy array, or as the JAX array that it is."""
    try:
        return values if isinstance(values, jax.Array) else np.asarray(values)
    except ValueError:
        raise TypeError(
            f"`{name}` must have rows of one length, got {values!r}."
        ) from None


def as_reals(name: str, values: Any) -> np.ndarray:
    """`values` as a float64 array of any shape."""
    array = np.asarray(as_array(name, values))
    if array.dtype.kind not in "fiu":  # NumPy would read None as NaN, and text
        raise TypeError(f"`{name}` must hold real numbers, got {values!r}.")
    return array.astype(np.float64)


def is_concrete(value: Any) -> bool:
    """Whether the value is known now, i.e. is not being traced."""
    return not isinstance(value, jax.core.Tracer)


def known(value: Any) -> Any:
    """A concrete array as a Python number, or as a NumPy array if it has several.

    In `jit` JAX would trace what is computed with an array of its own.
    """
    if not isinstance(value, jax.Array) or not is_concrete(value):
        return value
    return value.item() if value.ndim == 0 else np.asarray(value)


def check_bound(name: str, value: Any, *, at_least: int = 0) -> int:
    """`value` as a static integer, at least `at_least`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        bound = operator.index(known(value))
    except (TypeError, jax.errors.TracerIntegerConversionError):
        raise TypeError(f"`{name}` must be a static integer, got {value!r}.") from None
    if bound < at_least:
        rule = f"at least {at_least}" if at_least else "non-negative"
        raise ValueError(f"`{name}` must be {rule}, got {bound}.")
    return bound


def check_number(
    name: str, value: Any, *, below: float = np.inf, positive: bool = False
) -> Any:
    """`known(value)`, checked to lie in [0, below), or in (0, below)."""
    if not is_concrete(value):  # a grid is one program, which does not know its values
        return value
    given, value = value, known(value)
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        is_valid = 0.0 <= value < below and not (positive and value == 0.0)
    except (TypeError, ValueError):  # text, None, an array
        raise TypeError(f"`{name}` must be a number, got {given!r}.") from None
    if not is_valid:
        sign = "positive" if positive else "non-negative"
        interval = f"finite and {sign}" if below == np.inf else f"in [0, {below})"
        raise ValueError(f"`{name}` must be {interval}, got {value}.")
    return value


def check_between(name: str, value: Any, low: float, high: float) -> Any:
    """`known(value)`, checked to lie in the open interval (low, high)."""
    if not is_concrete(value):
        return value
    given, value = value, known(value)
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        is_valid = bool(low < value < high)
    except (TypeError, ValueError):  # text, None, an array
        raise TypeError(f"`{name}` must be a number, got {given!r}.") from None
    if not is_valid:
        raise ValueError(f"`{name}` must be in ({low}, {high}), got {value}.")
    return value


def as_scalar(name: str, answer: Any, *kinds: Any) -> jax.Array:
    """The answer of a user's function, of these kinds or real, as a scalar array."""
    names = {jnp.integer: "an integer", jnp.bool_: "a bool"}
    rule = " or ".join(names[kind] for kind in kinds) or "a real number"
    try:
        array = jnp.asarray(answer)
    except (TypeError, ValueError):  # text, None, a function
        raise TypeError(f"`{name}` must be {rule}, got {answer!r}.") from None
    wanted = kinds or (jnp.integer, jnp.floating)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in wanted):
        raise TypeError(f"`{name}` must be {rule}, got {array.dtype}.")
    if array.ndim != 0:
        raise ValueError(f"`{name}` must be a scalar, got shape {array.shape}.")
    return array


def check_function(name: str, value: Any) -> None:
    """Checks that an argument can be called."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function, got {value!r}.")


def check_key(name: str, key: Any) -> None:
    """Checks that a value is one key of JAX's."""
    kinds = jax.dtypes.prng_key, jnp.uint32  # typed, and the older kind
    dtype = getattr(key, "dtype", None)
    if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        raise TypeError(
            f"`{name}` must be a key, got {key!r}: write jax.random.key(0)."
        )


def check_alike(rule: str, tree: Any, like: Any) -> None:
    """Checks that two trees have the same structure, shapes and dtypes."""

    def kinds(tree):
        return {
            path_name(path): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
            for path, leaf in jax.tree.leaves_with_path(tree)
        }

    got, wanted = kinds(tree), kinds(like)
    changed = sorted(dict(got.items() ^ wanted.items()))
    if changed or jax.tree.structure(tree) != jax.tree.structure(like):
        where = changed[0] if changed else "the root"
        raise TypeError(
            f"{rule}, got {got.get(where)} for {wanted.get(where)} at {where}."
        )


def check_gradients(needed_by: str, updates: Any) -> None:
    """Checks that every gradient is floating point or complex."""
    for path, leaf in jax.tree.leaves_with_path(updates):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            raise TypeError(
                f"`{needed_by}` needs floating-point gradients, got {dtype} at"
                f" {path_name(path)}: cast it, or leave it out with optax.masked."
            )


def moved(needed_by: str, updates: Any, params: Any, stale_params: Any) -> Any:
    """x_t - x_{t-tau}, the parameters' move since the gradient was taken."""
    check_gradients(needed_by, updates)
    require(params, "params", needed_by, "call `update(grads, state, params)`")
    remedy = (
        "wrap the whole chain, `delayed(optax.chain(...), delay, keep_params=True)`"
    )
    require(stale_params, "stale_params", needed_by, remedy)
    stale_params = masked_like(stale_params, updates)
    check_shapes(needed_by, updates, params=params, stale_params=stale_params)
    return jax.tree.map(lambda x, y: operator.sub(*alike(x, y)), params, stale_params)


def check_shapes(needed_by: str, updates: Any, **trees: Any) -> None:
    """Checks that extra arguments have the gradients' shapes, for no broadcast."""
    wanted = jax.tree.map(jnp.shape, updates)
    for name, tree in trees.items():
        got = jax.tree.map(jnp.shape, tree)
        if got != wanted:
            raise ValueError(
                f"`{name}` handed to `{needed_by}` must be like the gradients,"
                f" {wanted}, got {got}."
            )


def rate_at(learning_rate: optax.ScalarOrSchedule, step: jax.Array) -> Any:
    """The learning rate of a step: a number, or the answer of a schedule."""
    if not callable(learning_rate):
        return learning_rate
    return as_scalar("learning_rate(step)", learning_rate(step))


def wide_zeros(tree: Any) -> Any:
    """Zeros like `tree`, at least float32: in bfloat16 a moving mean would stick."""

    def zeros(leaf):
        return jnp.zeros_like(leaf, dtype=wide_dtype(leaf))

    return jax.tree.map(zeros, tree)


def as_wide_as(tree: Any, reals: Any) -> Any:
    """`tree` in the precision of a tree of reals, complex where it is complex."""
    return jax.tree.map(lambda x, real: x.astype(wide_dtype(x, real)), tree, reals)


def real_zeros(tree: Any) -> Any:
    """Zeros like `tree`, real and at least float32, for means of |g|^2."""
    return jax.tree.map(lambda x: jnp.zeros_like(x, dtype=real_dtype(x)), tree)


def check_staleness(needed_by: str, staleness: Any, *, mean: bool = False) -> Any:
    """`staleness`, a scalar or a tree of these, as int32; a `mean` as float32."""

    def check_leaf(tau):
        dtype = jnp.result_type(tau)
        is_mean = mean and jnp.issubdtype(dtype, jnp.floating)
        is_count = is_mean or jnp.issubdtype(dtype, jnp.integer)
        is_one = is_count and jnp.ndim(tau) == 0
        if not is_one or (is_concrete(tau) and np.asarray(tau) < 0):
            raise ValueError(
                f"`staleness` handed to `{needed_by}` must be a non-negative integer,"
                f" or a tree with one for each leaf, got {tau!r}."
            )
        return jnp.asarray(tau, jnp.float32 if is_mean else jnp.int32)

    return jax.tree.map(check_leaf, staleness)


def take_staleness(
    needed_by: str, updates: Any, staleness: Any, *, mean: bool = False
) -> tuple[Any, Any]:
    """The gradients and their staleness, as `check_staleness` returns it.

    A traced staleness that is negative or NaN makes its gradients NaN.
    """
    ages = check_staleness(needed_by, staleness, mean=mean)
    if all(map(is_concrete, jax.tree.leaves(staleness))):
        return updates, ages
    if not is_leaf(ages):
        ages = masked_like(ages, updates)

    def checked(update, age):
        if not jnp.issubdtype(jnp.result_type(update), jnp.inexact):
            return update
        return jnp.where(age >= 0, update, jnp.nan)

    own = broadcast("staleness", ages, updates)
    return jax.tree.map(checked, updates, own), ages


def check_mesh(mesh: jax.sharding.Mesh, names: tuple[str, ...]) -> None:
    """Checks that a mesh has these axes."""
    if not set(names) <= set(mesh.axis_names):
        raise ValueError(
            f"`mesh` must have axes {names}, got {mesh}: make it with"
            f" jax.make_mesh((n,), {names}), or say which axis is the workers',"
            " axis_name=."
        )


def as_loss(needed_by: str, value: Any) -> jax.Array:
    """The loss that comes as the extra argument `value=`, or 0."""
    loss = jnp.asarray(0.0 if value is None else value, jnp.result_type(float))
    if loss.ndim != 0:
        raise ValueError(
            f"`value` handed to `{needed_by}` must be a scalar, the loss, got shape"
            f" {loss.shape}."
        )
    return loss
