"""The vocabulary that producers and consumers of staleness share."""

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src import boxes

Schedule = Callable[[Any], ArrayLike]
"""step (int32 []) -> a number, as in Optax."""

Delay = Any
"""A delay in updates: an int, an integer scalar array, a `Schedule`, or a prefix
tree of these."""

Law = Callable[[jax.Array], ArrayLike]
"""staleness (int32 [], or float32 [] where it is a mean) -> the factor that updates are
multiplied by."""


AxisName = str | tuple[str, ...]
"""The workers' axis, or several that number them together."""


def vary(tree: Any, *, axis_name: AxisName = "workers") -> Any:
    """Marks `tree` as different on each worker; changes no value.

    Under `shard_map` the gradient at replicated parameters is already summed over the
    workers, and averaging it again does nothing. Take gradients at `vary(params)`.
    Where `axis_name` is not a manual mesh axis (under `vmap`, outside of any axis) this
    is the identity.

    Args:
        tree: a tree of arrays, usually the parameters.
        axis_name: the workers' axis, or several.

    Returns:
        The same tree, varying over `axis_name`. Costs nothing at run time.

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
    """`tree`, each leaf typed as different where the leaf of `like` is."""

    def typed(leaf, other):
        axes = tuple(varies_over(other))
        return vary(leaf, axis_name=axes) if axes else leaf

    return jax.tree.map(typed, tree, like)


def real_dtype(tree: Any) -> jnp.dtype:
    """The dtype of a number beside a tree: real, as exact as the leaves, >= float32.

    Example:
        >>> real_dtype({"w": jnp.ones(2, jnp.bfloat16), "z": jnp.ones(2, complex)})
        dtype('float32')
    """
    return jnp.finfo(jnp.result_type(jnp.float32, *jax.tree.leaves(tree))).dtype


def varies_over(leaf: Any) -> frozenset[str]:
    """The manual axes over which an array is typed as different."""
    return jax.typeof(leaf).manual_axis_type.varying


def is_axis(name: str) -> bool:
    """Whether an axis of this name is there, mapped or manual."""
    try:
        jax.lax.axis_size(name)
    except NameError:
        return False
    return True


def as_names(axis_name: AxisName) -> tuple[str, ...]:
    """One or several axis names as several.

    Raises:
        TypeError: if there is none, one is no string, or one comes twice.
    """
    names = (axis_name,) if isinstance(axis_name, str) else axis_name
    if not (
        isinstance(names, tuple)
        and names
        and all(isinstance(name, str) and name for name in names)
        and len(set(names)) == len(names)
    ):
        raise TypeError(
            "`axis_name` must be a name, or a tuple of different names, got"
            f" {axis_name!r}."
        )
    return names


def require(value: Any, name: str, needed_by: str, remedy: str) -> Any:
    """Returns `value`, or says which extra argument `needed_by` lacks and the remedy.

    Raises:
        TypeError: if `value` is None.
    """
    if value is None:
        raise TypeError(
            f"`{needed_by}` needs the extra argument `{name}`, which nothing handed to"
            f" it: {remedy}, or pass `{name}=` to `update` by hand."
        )
    return value


def as_transformation(name: str, inner: Any) -> optax.GradientTransformationExtraArgs:
    """`inner` as a transformation that takes extra arguments (`MultiSteps` too).

    Raises:
        TypeError: if `inner` has no `init` and `update`.
    """
    method = getattr(inner, "update", None)
    steps = getattr(method, "__self__", None)
    if isinstance(steps, optax.MultiSteps):
        # its own `gradient_transformation()` drops extra arguments
        update: Any = steps.update
        return optax.GradientTransformationExtraArgs(steps.init, update)
    if not (hasattr(inner, "init") and callable(method)):
        raise TypeError(
            f"`{name}` must be an Optax transformation, got {inner!r}: pass"
            " optax.sgd(...), optax.chain(...) or another (init, update) pair."
        )
    return optax.with_extra_args_support(inner)


def broadcast(name: str, prefix: Any, tree: Any) -> Any:
    """`prefix` with one value for each leaf of `tree`.

    Boxes (Flax metadata, named arrays) count for nothing: the prefix may have them or
    not.

    Raises:
        ValueError: if it is no prefix of `tree`, naming the argument.
    """
    bare, whole = boxes.unboxed((prefix, tree))
    try:
        values, structure = jax.tree.flatten(bare, is_leaf=is_function)
        parts = structure.flatten_up_to(whole)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must be one value or a prefix of the tree"
            f" {jax.tree.structure(whole)}, got {bare!r}."
        ) from error
    repeated = [
        value
        for value, part in zip(values, parts, strict=True)
        for _ in jax.tree.leaves(part)
    ]
    return jax.tree.unflatten(jax.tree.structure(tree), repeated)


def is_function(node: Any) -> bool:
    """Whether a node of a tree is a function; a model that can be called is a tree."""
    if isinstance(node, jax.tree_util.Partial):
        return True
    return callable(node) and jax.tree_util.treedef_is_leaf(jax.tree.structure(node))


def masked_like(tree: Any, updates: Any) -> Any:
    """`tree` without the parts that `optax.masked` or `optax.partition` took away.

    These mask gradients and parameters, but not what comes as an extra argument.
    """

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
    """`values` as a NumPy or JAX array, as it is where it is traced.

    Raises:
        TypeError: if its rows differ in length.
    """
    try:
        return values if isinstance(values, jax.Array) else np.asarray(values)
    except ValueError:
        raise TypeError(
            f"`{name}` must have rows of one length, got {values!r}."
        ) from None


def as_reals(name: str, values: Any) -> np.ndarray:
    """`values` as float64, of any shape.

    Raises:
        TypeError: if they are no real numbers.
    """
    array = np.asarray(as_array(name, values))
    if array.dtype.kind not in "fiu":
        raise TypeError(f"`{name}` must hold real numbers, got {values!r}.")
    return array.astype(np.float64)


def is_concrete(value: Any) -> bool:
    """Whether `value` can be looked at now, i.e. is not being traced."""
    return not isinstance(value, jax.core.Tracer)


def check_bound(name: str, value: Any, *, at_least: int = 0) -> int:
    """`value` as a static integer: a bound in steps, a number of workers.

    Raises:
        TypeError: if it is not a Python or NumPy integer.
        ValueError: if it is below `at_least`.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        bound = operator.index(value)
    except (TypeError, jax.errors.TracerIntegerConversionError):
        raise TypeError(f"`{name}` must be a static integer, got {value!r}.") from None
    if bound < at_least:
        rule = f"at least {at_least}" if at_least else "non-negative"
        raise ValueError(f"`{name}` must be {rule}, got {bound}.")
    return bound


def check_number(
    name: str, value: Any, *, below: float = math.inf, positive: bool = False
) -> None:
    """Checks that a hyper-parameter, where it is known, lies in [0, below).

    With `positive` 0 is refused as well. Traced values pass: a grid is one program, and
    its values are not known in it.

    Raises:
        TypeError: if `value` is not a real scalar; a bool is none.
        ValueError: if it is NaN, infinite or out of range.
    """
    if not is_concrete(value):
        return
    try:
        # float() would read text, and take True for 1
        if isinstance(value, (bool, np.bool_, str, bytes)) or np.ndim(value) != 0:
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"`{name}` must be a number, got {value!r}.") from None
    if not 0.0 <= number < below or (positive and number == 0.0):
        sign = "positive" if positive else "non-negative"
        interval = f"finite and {sign}" if below == math.inf else f"in [0, {below})"
        raise ValueError(f"`{name}` must be {interval}, got {value}.")


def check_answer(name: str, answer: Any, *kinds: Any) -> jax.Array:
    """What a function of the user says, as a scalar array.

    Args:
        name: the call that it answers.
        answer: of that call.
        *kinds: what it may be: `jnp.integer`, `jnp.bool_`; see also `as_scalar`.

    Raises:
        TypeError: if it is of none of these kinds.
        ValueError: if it is no scalar.
    """
    try:
        array = jnp.asarray(answer)
        said = str(array.dtype)
    except (TypeError, ValueError):  # None, text
        array, said = None, repr(answer)
    if array is None or not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        names = {jnp.integer: "an integer", jnp.bool_: "a bool"}
        what = " or ".join(names[kind] for kind in kinds)
        raise TypeError(f"`{name}` must be {what}, got {said}.")
    if array.ndim != 0:
        raise ValueError(
            f"`{name}` must be a scalar, got shape {array.shape}: it is one answer to"
            " each call."
        )
    return array


def check_key(name: str, key: Any) -> None:
    """Checks that `key` is one PRNG key, as `jax.random.key` or `PRNGKey` makes it.

    Raises:
        TypeError: if it is something else, or several keys.
    """
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not ((typed and shape == ()) or (dtype == jnp.uint32 and len(shape or ()) == 1)):
        raise TypeError(
            f"`{name}` must be a PRNG key, jax.random.key(seed), got {key!r}."
        )


def as_scalar(name: str, answer: Any) -> jax.Array:
    """What a function of the user answers, where one real number is needed.

    Raises:
        TypeError: if it is no real number, naming the call.
        ValueError: if it is no scalar.
    """
    try:
        if isinstance(answer, (str, bytes)):
            raise TypeError
        number = jnp.asarray(answer)
    except (TypeError, ValueError):
        number = None
    if number is None or jnp.iscomplexobj(number) or number.dtype == jnp.bool_:
        raise TypeError(f"`{name}` must be a real number, got {answer!r}.")
    if number.ndim != 0:
        raise ValueError(f"`{name}` must be a scalar, got shape {number.shape}.")
    return number


def as_loss(needed_by: str, value: Any) -> jax.Array:
    """The loss that comes as the extra argument `value=`, as it is kept; 0 for None.

    Raises:
        ValueError: if it is no scalar.
    """
    loss = jnp.asarray(0.0 if value is None else value, jnp.result_type(float))
    if loss.ndim != 0:
        raise ValueError(
            f"`value` handed to `{needed_by}` must be a scalar, the loss, got shape"
            f" {loss.shape}."
        )
    return loss


def check_gradients(needed_by: str, updates: Any) -> None:
    """Checks that every gradient is floating point or complex.

    Raises:
        TypeError: naming the first leaf that is not.
    """
    for path, leaf in jax.tree.leaves_with_path(updates):
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.inexact):
            where = jax.tree_util.keystr(path) or "the root"
            raise TypeError(
                f"`{needed_by}` needs floating-point gradients, got {dtype} at {where}:"
                " cast it, or leave the leaf out with optax.masked."
            )


def check_staleness(needed_by: str, staleness: Any, *, mean: bool = False) -> Any:
    """`staleness` (one, or a tree with one for each leaf) as int32.

    With `mean` it may be that of several gradients, and is float32 then.

    Raises:
        TypeError: if it is not an integer (or, with `mean`, no real number).
        ValueError: if it is no scalar, or is known and negative.
    """

    def check_leaf(tau):
        dtype = jnp.result_type(tau)
        is_mean = mean and jnp.issubdtype(dtype, jnp.floating)
        if not (is_mean or jnp.issubdtype(dtype, jnp.integer)):
            raise TypeError(
                f"`staleness` handed to `{needed_by}` must be an integer number of"
                f" steps, got {tau!r}."
            )
        if jnp.ndim(tau) != 0:
            raise ValueError(
                f"`staleness` handed to `{needed_by}` must be a scalar, or a tree of"
                f" one for each leaf, got shape {jnp.shape(tau)}."
            )
        if is_concrete(tau) and np.asarray(tau) < 0:
            raise ValueError(
                f"`staleness` handed to `{needed_by}` must be non-negative, got {tau}."
            )
        return jnp.asarray(tau, jnp.float32 if is_mean else jnp.int32)

    return jax.tree.map(check_leaf, staleness)
