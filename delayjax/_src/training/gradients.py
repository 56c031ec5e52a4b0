"""Calls of `grad_fn`, with the model's state, and checks of its results."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from delayjax._src.ground import shardings, trees

GradFn = Callable[..., tuple]
"""(params, batch, key) -> (metrics, gradients), as `jax.value_and_grad` returns; with a
state, (params, batch, key, model_state) -> ((metrics, model_state), gradients); with a
state of the worker, (params, batch, key, model_state, worker_state) -> ((metrics,
model_state, worker_state), gradients)."""


class Taken(NamedTuple):
    """One gradient, or [c, ...] several."""

    gradients: Any
    metrics: Any
    model_state: Any = None  # None where the model has none
    worker_state: Any = None  # None where the worker has none


def take(
    grad_fn: GradFn,
    params: Any,
    batch: Any,
    key: jax.Array,
    model_state: Any,
    worker_state: Any = None,
) -> Taken:
    """Calls `grad_fn`, with the states of model and worker where there are any."""
    states = _given(model_state, worker_state)
    value, gradients = grad_fn(params, batch, key, *states)
    metrics, *after = value if states else (value,)

    # on a mesh of Explicit axes statistics are sharded as the activations are
    return Taken(
        gradients, metrics, *jax.tree.map(shardings.as_typed, tuple(after), states)
    )


def _given(model_state: Any, worker_state: Any) -> tuple[Any, ...]:
    """The states that `grad_fn` takes and returns."""
    if worker_state is not None:
        return model_state, worker_state
    return () if model_state is None else (model_state,)


def check(
    grad_fn: GradFn,
    params: Any,
    batch: Any,
    key: jax.Array,
    model_state: Any,
    worker_state: Any = None,
) -> Taken:
    """The shapes of one gradient, which must be like the parameters."""
    states = _given(model_state, worker_state)
    names = "model_state", "worker_state"
    first = ", ".join(("metrics", *names[: len(states)]))
    returns = f"({f'({first})' if states else first}, gradients)"
    answer = jax.eval_shape(grad_fn, params, batch, key, *states)
    value, gradients = _parts(returns, answer, 2)
    metrics, *after = _parts(returns, value, 1 + len(states)) if states else (value,)
    must = f"`grad_fn` must return {returns}"
    trees.check_same_types(
        f"{must} with gradients like the parameters", gradients, params
    )
    for name, new, old in zip(names, after, states, strict=False):
        kind = name.replace("_", " ")
        trees.check_same_types(f"{must} with a {kind} like the given {kind}", new, old)
    return Taken(gradients, metrics, *after)


def _parts(returns: str, answer: Any, count: int) -> Any:
    if not isinstance(answer, (tuple, list)) or len(answer) != count:
        raise TypeError(
            f"`grad_fn` must return {returns}, got {answer!r}: write for example"
            " jax.value_and_grad(loss)."
        )
    return answer
