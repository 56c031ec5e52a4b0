"""PipeMare's backward weights, an estimate of the weights of the forward pass."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms, trees
from delayjax._src.history import layers, wrapped


class DiscrepancyCorrectionState(NamedTuple):
    """State of `discrepancy_correction`."""

    gap: Any  # tau, in updates, real: [] or [L, 1, ...] of each leaf
    velocity: Any  # delta, like the parameters, at least float32
    inner_state: Any


@kinds.checked
def discrepancy_correction(
    inner: transforms.Transformation,
    delay: extras.Delay,
    *,
    decay: kinds.Share,
    microbatches: kinds.Positive = 1,
) -> optax.GradientTransformationExtraArgs:
    """PipeMare's T2: keeps the mean move, which `backward_params` needs.

    In a pipeline without a stash the backward pass reads weights that are tau updates
    newer than the weights of its forward pass. PipeMare runs it at

        y_t     = x_t - tau delta_t
        delta_t = gamma delta_{t-1} + (1 - gamma) (x_t - x_{t-1}),    delta_0 = 0
        gamma   = D^{1 / tau}

    in place of x_t: delta is a mean of the last moves, each of which loses a factor of
    D in tau updates. If all moves are equal, y_t becomes equal to the weights of the
    forward pass, x_{t-tau}. Wrap the whole optimizer, with the learning rate. The
    updates are the updates of `inner`, and are applied to x.

    Args:
        inner: the whole optimizer.
        delay: the delay between the passes, tau M: a number, or a prefix tree of
            numbers and of `delays.Layers`: each pipeline stage has its own delay.
            Numbers may be traced.
        decay: D, in [0, 1); with 0 delta is the last move. May be traced.
        microbatches: M in an update, positive: tau = delay / M, in updates. With M = 1
            the delay is in updates. PipeMare has (2W + 1) / M for a stage with W stages
            after it. May be traced.

    Returns:
        A transformation whose state has delta beside the state of `inner`: as much
        memory as the parameters in float32.

    Raises:
        ValueError: in `init`, if `delay` is no prefix of the parameters, or a leaf has
            another number of layers.

    Example:
        >>> tx = discrepancy_correction(optax.sgd(1.0), 2, decay=0.25)  # gamma = 1/2
        >>> params = jnp.zeros(())
        >>> state = tx.init(params)
        >>> for _ in range(4):
        ...     update, state = tx.update(jnp.ones(()), state, params)
        ...     params = optax.apply_updates(params, update)
        ...     print(params, backward_params(state, params))
        -1.0 0.0
        -2.0 -0.5
        -3.0 -1.25
        -4.0 -2.125

    References:
        Yang et al., PipeMare, 2021, arXiv:1910.05124, technique T2, as we recall it: we
        could not read the equations and the value of D again; we remember 0.135 and
        0.5.
    """
    inner = transforms.as_transformation("inner", inner)
    delay = layers.checked_numbers("delay", delay)

    def gaps(like):
        asked = layers.numbers_of("delay", delay, like)
        return jax.tree.map(
            lambda tau: tau / jnp.asarray(microbatches, tau.dtype), asked
        )

    def init_fn(params):
        return DiscrepancyCorrectionState(
            gaps(params),
            dtypes.wide_zeros(params),
            wrapped.init(
                "inner", inner, params, wrapper="discrepancy_correction", late=False
            ),
        )

    def update_fn(updates, state, params=None, **extra_args):
        updates, inner_state = inner.update(
            updates, state.inner_state, params, **extra_args
        )

        def mean(tau, delta, move):
            # without a delay 1 / tau is infinite, and gamma 0
            gamma = jnp.asarray(decay, tau.dtype) ** (1.0 / tau)
            keep, old, new = dtypes.in_one_dtype(gamma, delta, move)
            return (keep * old + (1.0 - keep) * new).astype(delta.dtype)

        # recomputed, because a restored run may have another delay
        new = gaps(state.velocity)
        gap = trees.broadcast("gap", new, updates)
        velocity = jax.tree.map(mean, gap, state.velocity, updates)
        return updates, DiscrepancyCorrectionState(new, velocity, inner_state)

    return transforms.stateful(DiscrepancyCorrectionState, init_fn, update_fn)


def backward_params(opt_state: Any, params: Any) -> Any:
    """The parameters at which to run a backward pass whose forward pass was earlier.

        y = x - tau delta

    Args:
        opt_state: a state with one state of `discrepancy_correction` in it.
        params: x, the current parameters.

    Returns:
        A tree like `params`, in their dtypes; a copy, also where tau delta is 0.

    Raises:
        ValueError: if the state has no state of `discrepancy_correction`, or several.

    Example:
        >>> tx = discrepancy_correction(optax.sgd(1.0), 3, decay=0.0)
        >>> _, state = tx.update(jnp.ones(()), tx.init(jnp.zeros(())))
        >>> print(backward_params(state, jnp.asarray(-1.0)))
        2.0
    """
    state = transforms.state_in(
        opt_state,
        DiscrepancyCorrectionState,
        "state of `discrepancy_correction`",
        "wrap the whole optimizer, discrepancy_correction(optimizer, delay, decay=0.5)",
    )
    extras.check_shapes("backward_params", state.velocity, params=params)
    gap = trees.broadcast("gap", state.gap, params)

    def back(x, tau, delta):
        wide, way = dtypes.in_one_dtype(x, dtypes.times(tau, delta))
        return (wide - way).astype(x.dtype)

    return jax.tree.map(back, params, gap, state.velocity)
