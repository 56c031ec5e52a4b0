"""Weight prediction: gradients at the parameters expected when they are applied."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms, trees
from delayjax._src.history import layers, wrapped

Direction = Callable[[Any, Any, jax.Array], Any]
"""(inner state before an update, state after it, updates done) -> the next update."""


class PredictWeightsState(NamedTuple):
    """State of `predict_weights`."""

    step: jax.Array  # updates done, int32 []
    reach: Any  # p tau, in updates, real: [] or [L, 1, ...] of each leaf
    expected: Any  # Delta, the next update, like the parameters
    inner_state: Any


@kinds.checked
def predict_weights(
    inner: transforms.Transformation,
    horizon: extras.Delay,
    *,
    share: kinds.NonNegative = 1.0,
    direction: Direction | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Weight prediction: keeps the expected update, which `gradient_params` needs.

    A gradient that is used tau updates later is taken at

        y_t = x_t + p tau Delta_t,    Delta_t = x_t - x_{t-1},    Delta_0 = 0

    where Delta is the last update of `inner`, with its learning rate and schedule (for
    bfloat16 parameters, before they round it). Wrap the whole optimizer, with the
    delay, and take each gradient at `gradient_params(state, params)` in place of
    `params`. The updates are the updates of `inner`, and are applied to `params`.
    Before update tau the prediction looks further ahead than the gradient is late, as
    published. With a `direction` Delta is computed from the state of the optimizer, as
    PipeOptim computes it from the moments.

    Args:
        inner: the whole optimizer.
        horizon: tau, in updates: a number, or a prefix tree of numbers and of
            `delays.Layers`: each pipeline stage has its own. Numbers may be traced.
        share: p, non-negative; 1 predicts all tau updates. May be traced.
        direction: the update that is expected next, for example
            `pipelines.adam_direction(0.001)`: a function of the state of `inner` before
            an update and after it, and of the updates done, int32 []. By default it is
            the last update.

    Returns:
        A transformation whose state has Delta, as much memory as one gradient, beside
        the state of `inner`.

    Raises:
        ValueError: in `init`, if `horizon` is no prefix of the parameters, or a leaf
            has another number of layers.
        TypeError: in `init`, if `direction` does not return a tree like the parameters.

    Example:
        >>> from delayjax import delayed
        >>> tx = predict_weights(delayed(optax.sgd(0.5), 1), 1)
        >>> params = jnp.ones(())
        >>> state = tx.init(params)
        >>> for _ in range(3):
        ...     ahead = gradient_params(state, params)
        ...     grad = jax.grad(lambda x: x**2 / 2)(ahead)
        ...     update, state = tx.update(grad, state, params)
        ...     print(params, ahead)
        ...     params = optax.apply_updates(params, update)
        1.0 1.0
        0.5 0.0
        0.0 -0.5

    References:
        Chen, Yang and Cheng, SpecTrain, 2018, arXiv:1809.02839, predicts by the
        momentum. The form with the last applied update comes from an experiment of the
        Marin project (`moe_delay`, a program, not a paper). Guan et al., PipeOptim,
        2023, arXiv:2312.00839, predicts by the optimizer's moments.
    """
    inner = transforms.as_transformation("inner", inner)
    horizon = layers.checked_numbers("horizon", horizon)

    def reaches(like):
        horizons = layers.numbers_of("horizon", horizon, like)
        return jax.tree.map(lambda tau: tau * share, horizons)

    def init_fn(params):
        reach = reaches(params)
        inner_state = wrapped.init(
            "inner", inner, params, wrapper="predict_weights", late=False
        )
        step = jnp.zeros((), jnp.int32)
        if direction is not None:
            answer = jax.eval_shape(direction, inner_state, inner_state, step)
            must = "`direction` must return a tree like the parameters"
            trees.check_same_shapes(must, answer, params)
        return PredictWeightsState(
            step,
            reach,
            jax.tree.map(jnp.zeros_like, params),
            inner_state,
        )

    def update_fn(updates, state, params=None, **extra_args):
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )
        expected, step = updates, state.step + 1
        if direction is not None:
            expected = direction(state.inner_state, inner_state, step)
        expected = optax.tree.cast_like(expected, state.expected)
        # recomputed, because a restored run may have another horizon
        reach = reaches(state.expected)
        return updates, PredictWeightsState(step, reach, expected, inner_state)

    return transforms.stateful(PredictWeightsState, init_fn, update_fn)


def gradient_params(opt_state: Any, params: Any) -> Any:
    """The parameters at which to take a gradient that is applied later.

        y = x + p tau Delta

    Args:
        opt_state: a state with one state of `predict_weights` in it.
        params: x, the current parameters.

    Returns:
        A tree like `params`, in their dtypes; a copy, also where tau Delta is 0.

    Raises:
        ValueError: if the state has no state of `predict_weights`, or several.

    Example:
        >>> tx = predict_weights(optax.sgd(1.0), 3)
        >>> _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
        >>> print(gradient_params(state, jnp.asarray(-1.0)))
        -4.0
    """
    state = transforms.state_in(
        opt_state,
        PredictWeightsState,
        "state of `predict_weights`",
        "wrap the whole optimizer, predict_weights(optimizer, horizon)",
    )
    extras.check_shapes("gradient_params", state.expected, params=params)
    reach = trees.broadcast("reach", state.reach, params)

    def ahead(x, reach, last):
        return (x + dtypes.times(reach, last).astype(x.dtype)).astype(x.dtype)

    return jax.tree.map(ahead, params, reach, state.expected)
