"""An optimizer whose gradients are taken between its steps and their average."""

from typing import Any, NamedTuple

import jax
import optax

from delayjax._src.ground import donation, dtypes, extras, kinds, transforms
from delayjax._src.history import wrapped


class PrimalAveragingState(NamedTuple):
    """State of `primal_averaging`."""

    gap: Any  # x - z, like the parameters, at least float32
    inner_state: Any


@kinds.checked
def primal_averaging(
    inner: transforms.Transformation,
    *,
    decay: kinds.Share = 0.9967,
    interpolation: kinds.ClosedShare = 0.7,
) -> optax.GradientTransformationExtraArgs:
    """Generalized primal averaging (GPA): DiLoCo of one worker without rounds.

        z <- z + U(g, z)
        x <- mu_x x + (1 - mu_x) z
        y <- mu_y x + (1 - mu_y) z

    with U the step of `inner` and gradients g at y, the training step's parameters. It
    averages at every step, where `averaging.outer(axis_name=None)` takes an outer step
    once in H steps. Its outer momentum of 0.9 in H steps is the decay mu_x = 0.9^(1/H):
    0.9967 for H = 32, and 0.9869 for H = 8. If U is SGD with the step eta, mu_x = mu_y
    = mu is Nesterov's momentum, and mu_y = 1 is heavy ball, both with the momentum mu
    and the step (1 - mu) eta. With mu_x = 0 it is U alone.

    The state holds e = x - z, which is enough:

        e' = mu_x (e - u),    u = U(g, y - mu_y e)
        y' = y + u + mu_y (e' - e)

    So evaluate the model at x = y + (1 - mu_y) e. Put this rule last in a chain. It
    does not use the staleness: `delayed(primal_averaging(inner), ...)`.

    Args:
        inner: U, with its learning rate and its weight decay, which acts on z. Extra
            arguments reach it unchanged, and its parameters are z.
        decay: mu_x, in [0, 1). May be traced.
        interpolation: mu_y, in [0, 1]. May be traced.

    Returns:
        A transformation whose state is one tree like the parameters, at least float32,
        beside the state of U. Updates keep their dtype. The model to evaluate is
        `optax.tree.add_scale(params, 1 - mu_y, optax.tree.get(state, "gap"))`. Train
        float32 parameters, and cast them in the loss: small moves of 16-bit parameters
        are lost, as with all optimizers, but e keeps these moves, so x becomes wrong.

    Raises:
        TypeError: in `update`, if `params` is missing.
        ValueError: in `init`, if U pairs gradients with parameters (L-BFGS, a line
            search): gradients are taken at y, but U receives the parameters z.

    Example:
        >>> import jax.numpy as jnp
        >>> tx = primal_averaging(optax.sgd(1.0), decay=0.5, interpolation=1.0)
        >>> y = jnp.ones(())
        >>> state = tx.init(y)
        >>> for _ in range(3):  # g = 1, so that z is 0, -1, -2
        ...     update, state = tx.update(jnp.ones(()), state, y)
        ...     y = optax.apply_updates(y, update)
        ...     print(y, state.gap)
        0.5 0.5
        -0.25 0.75
        -1.125 0.875

    References:
        Defazio et al., Smoothing DiLoCo with primal averaging, 2025, arXiv:2512.17131,
        as its code facebookresearch/optimizers does; e is our form of it.
    """
    inner = transforms.as_transformation("inner", inner)

    def state_of(params):
        inner_state = wrapped.init("inner", inner, params, wrapper="primal_averaging")
        return PrimalAveragingState(dtypes.wide_zeros(params), inner_state)

    def init_fn(params):
        return donation.made(state_of, params)

    def fast(params, gap):
        """The fast model, z = y - mu_y e."""
        factor, y, e = dtypes.in_one_dtype(interpolation, params, gap)
        return (y - factor * e).astype(params.dtype)

    def shrink(gap, move):
        """The next gap, e' = mu_x (e - u)."""
        factor, e, u = dtypes.in_one_dtype(decay, gap, move)
        return (factor * (e - u)).astype(gap.dtype)

    def moved(move, gap, after):
        """The move of y, u + mu_y (e' - e)."""
        factor, u, e, new = dtypes.in_one_dtype(interpolation, move, gap, after)
        return (u + factor * (new - e)).astype(move.dtype)

    def update_fn(updates, state, params=None, **extra_args):
        params = extras.require_params(params, "primal_averaging")
        z = jax.tree.map(fast, params, state.gap)
        moves, inner_state = inner.update(updates, state.inner_state, z, **extra_args)
        gap = jax.tree.map(shrink, state.gap, moves)
        moves = jax.tree.map(moved, moves, state.gap, gap)
        return moves, PrimalAveragingState(gap, inner_state)

    return transforms.stateful(PrimalAveragingState, init_fn, update_fn)
