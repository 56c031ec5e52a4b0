"""An averaging method from the user's function `mix`, which is checked."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, kinds, transforms, trees


@kinds.checked
def averaged(
    inner: transforms.Transformation,
    mix: Callable[[jax.Array, Any, Any, Any], tuple[Any, Any]],
    *,
    begin: Callable[[Any], Any] | None = None,
    axis_name: axes.AxisName = "workers",
) -> optax.GradientTransformationExtraArgs:
    """Each worker takes a step of its own optimizer U; then `mix` mixes the models.

        x'^i = x^i + U(g^i)
        x^i, m <- mix(t, m, x^i, x'^i)

    The methods of `averaging` use the same engine. It takes the local step, keeps the
    state, and checks that the gradients are each worker's own.

    Args:
        inner: each worker's own optimizer, U. Extra arguments reach it unchanged.
        mix: (step, memory, before, model) -> (model, memory) of one worker. `step` is
            the number of updates done, int32 []. `before` and `model` are the worker's
            model before and after its local step, trees like the parameters. Mix with
            collectives over `axis_name`. Both branches of a `cond` or `switch` must
            have one type: apply `workers.vary` to their arguments and to their results.
        begin: parameters -> the method's memory before the first step, a tree of
            arrays; by default ().
        axis_name: the workers' axis, or several.

    Returns:
        A transformation whose state has the fields `step`, `memory` and `inner_state`.
        `params + updates` is the mixed model, so the transformation must be the last of
        a chain. It costs what `inner` and `mix` cost.

    Raises:
        TypeError: in `update`, if `mix` returns another kind of model or memory.
        ValueError: in `update`, if a gradient was summed over the workers.
        NameError: in `update`, if there is no such axis.

    Example:
        >>> import jax.numpy as jnp
        >>> def to_the_mean(step, memory, before, model):
        ...     return jax.lax.pmean(model, "workers"), memory
        >>> tx = averaged(optax.sgd(1.0), to_the_mean)
        >>> def step(grad):
        ...     return tx.update(grad, tx.init(grad), jnp.zeros(()))[0]
        >>> jax.vmap(step, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        Array([-2., -2.], dtype=float32)
    """

    def checked(step, memory, before, model):
        mixed, after = mix(step, memory, before, model)
        must = "`mix` must return (model, memory) with a model like the given model"
        trees.check_same_shapes(must, mixed, model)
        must = "`mix` must return a memory like the given memory"
        trees.check_same_types(must, after, memory)
        return mixed, after

    return step_then_mix(
        "extend.averaged",
        inner,
        checked,
        axis_name,
        (lambda params: ()) if begin is None else begin,
    )
