"""Guided SGD: replays the gradients that agree with a verification loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import axes, checks, dtypes, extras, kinds, transforms, xla
from delayjax._src.history import ring as rings


class GuidedState(NamedTuple):
    """State of `guided`."""

    step: jax.Array  # gradients received so far, int32 []
    replayed: jax.Array  # gradients replayed so far, int32 []
    error: jax.Array  # the verification loss at the last step, float32 []
    # of the gradients in the list
    scores: jax.Array  # their consistency, -inf: no gradient, float32 [psi + 1]
    losses: jax.Array  # that came with them, float32 [psi + 1]
    gradients: Any  # leaves [psi + 1, *shape]; narrow floats as integers


@kinds.checked
def guided(
    loss_fn: Callable[[Any], ArrayLike],
    *,
    period: kinds.Count = 10,
    replays: kinds.PositiveInt = 4,
) -> optax.GradientTransformationExtraArgs:
    """Guided SGD: replays the gradients whose batches agree with a verification loss.

    With E_t the verification loss at the parameters of step t, and e_k the loss of
    the batch of gradient k, each gradient in a list gets at each step

        s_k <- s_k + sign_t (E_{t-1} - e_k),    sign_t = 1 if E_t < E_{t-1}, else -1

    A gradient is *consistent* if s_k > 0: its batch's loss lies on the side of E_{t-1}
    to which the verification loss moves. At every rho-th step the psi gradients with
    the best scores, if they are consistent, are used once more, and the list is
    cleared:

        g_t <- g_t + sum of g_k over the list with s_k > 0

    The paper's aim is to correct the deviation that delay causes. Put the rule
    before the optimizer, and the delay around both: `delayed(optax.chain(guided(...),
    optax.sgd(0.1)), ...)`. SGD then moves as if it took one step for each gradient.

    The author's released code has the same scores. A gradient gets its first score at
    the step after its own. We recall from the paper that a list lasts rho steps; in the
    released code this test is switched off. The following parts are ours. The code
    recomputes a replayed gradient, on its batch, at the current parameters; here the
    stored gradient is used, which is up to rho steps older than the `staleness=` that
    the chain receives. The code recomputes e_k at each step; here it is the loss that
    came with the gradient. The code draws a new verification batch at each step; here
    `loss_fn` is fixed. The newest gradient stays in the list when the list is cleared.
    The list is pruned greedily: it has psi + 1 places, and a new gradient takes the
    place of the gradient with the lowest score, which might have become one of the psi
    best by the rho-th step.

    Args:
        loss_fn: parameters -> the loss on data for verification, float []. It is
            evaluated at each step.
        period: rho, in steps, at least 1; 10 in the author's code for one worker. May
            be traced.
        replays: psi, the most gradients replayed at once, at least 1; min(4, rho / 2)
            in the author's code. Static.

    Returns:
        A transformation whose state holds psi + 1 gradients, which needs `params` and
        `value=`, the loss of the batch (`delayed` keeps it with its gradient). With a
        donated state a step writes one gradient in place; a step that replays reads all
        of them. Under a `vmap` with a batched `step` each step reads them. `replayed`
        counts the gradients used once more. Sums are in float32 at least. A gradient
        whose loss is not finite is not replayed.

    Raises:
        TypeError: in `update`, without `params` or `value=`, or if `loss_fn` does not
            return a real number.

    Example:
        >>> tx = guided(lambda x: x, period=3, replays=1)
        >>> state = tx.init(jnp.zeros(()))
        >>> for x, g, loss in [(3.0, 1.0, 2.0), (2.0, 10.0, 9.0), (1.0, 100.0, 9.0)]:
        ...     g, state = tx.update(jnp.asarray(g), state, jnp.asarray(x), value=loss)
        ...     print(g, state.replayed)
        1.0 0
        10.0 0
        101.0 1

    References:
        Sharma, Guided parallelized stochastic gradient descent for delay compensation,
        Applied Soft Computing 102:107084, 2021, arXiv:2101.07259; the author's code is
        github.com/anuraganands/parallel-GSGD, and GSGD for one worker.
    """

    def init_fn(params):
        state = GuidedState(
            step=jnp.zeros((), jnp.int32),
            replayed=jnp.zeros((), jnp.int32),
            error=jnp.zeros((), jnp.float32),
            scores=jnp.full(replays + 1, -jnp.inf, jnp.float32),
            losses=jnp.zeros(replays + 1, jnp.float32),
            gradients=rings.init(params, replays + 1).slots,
        )
        return axes.vary_as(params, state)

    def update_fn(updates, state, params=None, *, value=None, **extra_args):
        extras.require_params(params, "guided")
        checks.check_held("replays", replays, len(state.scores) - 1)
        remedy = "pass the loss of the batch, `value=loss`"
        extras.require(value, "value", "guided", remedy)
        error = checks.as_scalar("loss_fn(params)", loss_fn(params)).astype(jnp.float32)
        loss = extras.as_loss(value).astype(jnp.float32)

        sign = jnp.where(error < state.error, 1.0, -1.0)
        scores = state.scores + sign * (state.error - state.losses)
        slot = jnp.argmin(scores)  # a free slot, or of the least consistent gradient
        rings.check_tree("updates", state.gradients, updates)
        gradients = rings.with_item(state.gradients, slot, updates)
        losses = state.losses.at[slot].set(loss)
        scores = scores.at[slot].set(jnp.where(jnp.isfinite(loss), 0.0, -jnp.inf))

        step = state.step + 1
        is_consistent = (scores > 0) & (step % period == 0)
        begins_anew = (step % period == 0) & (jnp.arange(replays + 1) != slot)
        updates = axes.typed_like(updates, gradients)
        given = updates, gradients, is_consistent
        updates = jax.lax.cond(is_consistent.any(), _replayed, _alone, *given)
        return updates, GuidedState(
            step=step,
            replayed=state.replayed + is_consistent.sum(dtype=jnp.int32),
            error=axes.typed_like(error, state.error),
            scores=jnp.where(begins_anew, -jnp.inf, scores),
            losses=losses,
            gradients=gradients,
        )

    return transforms.stateful(GuidedState, init_fn, update_fn)


def _alone(gradient: Any, slots: Any, used: jax.Array) -> Any:
    """The gradient, without replayed gradients."""
    return gradient


def _replayed(gradient: Any, slots: Any, used: jax.Array) -> Any:
    """The gradient plus the gradients in the `used` slots, bool [psi + 1]."""
    leaves, structure = jax.tree.flatten(gradient)
    held = jax.tree.leaves(slots)

    def add(k, totals):  # in a loop, because XLA would copy the slots for one sum
        def plus(total, kept, leaf):
            kept = xla.from_bits(rings.read_slot(kept, k), jnp.result_type(leaf))
            return total + jnp.where(used[k], kept, 0).astype(total.dtype)

        return list(map(plus, totals, held, leaves))

    wide = [dtypes.wide(leaf) for leaf in leaves]
    totals = jax.lax.fori_loop(0, len(used), add, wide)
    return optax.tree.cast_like(jax.tree.unflatten(structure, totals), gradient)
