"""PipeMare's learning rates: at first smaller for late stages, later all the same."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, extras, kinds, transforms, trees
from delayjax._src.history import layers


class RescheduleByDelayState(NamedTuple):
    """State of `reschedule_by_delay`."""

    step: jax.Array  # updates done, int32 []


@kinds.checked
def reschedule_by_delay(
    delay: extras.Delay,
    *,
    annealing_steps: kinds.Positive,
    microbatches: kinds.Positive = 1,
) -> optax.GradientTransformationExtraArgs:
    """PipeMare's T1: stages that are late begin with a smaller learning rate.

    A stage whose gradients are tau_s updates late has at update t the learning rate

        eta_s(t) = eta / tau_s^{p(t)},    p(t) = 1 - min(t / K, 1)

    that is eta / tau_s at first, and eta from update K on. The largest stable step of a
    late stage falls as 1 / tau_s, and so does its first learning rate. Put this rule
    behind the optimizer, in a chain: before Adam it would do nothing. With a delay
    below 1 a stage keeps eta.

    Args:
        delay: the delay of gradients, tau_s M: a number, or a prefix tree of numbers
            and of `delays.Layers`: each pipeline stage has its own delay. Numbers may
            be traced.
        annealing_steps: K, in updates, positive. May be traced.
        microbatches: M in an update, positive: tau_s = delay / M, in updates. With M =
            1 the delay is in updates. PipeMare has (2W + 1) / M for a stage with W
            stages after it. May be traced.

    Returns:
        A transformation whose state counts the updates. Updates keep their dtype.

    Raises:
        ValueError: in `init`, if `delay` is no prefix of the parameters, or a leaf has
            another number of layers.

    Example:
        >>> stages = {"first": 4, "last": 1}
        >>> tx = optax.chain(
        ...     optax.sgd(1.0), reschedule_by_delay(stages, annealing_steps=2))
        >>> grads = {"first": jnp.ones(()), "last": jnp.ones(())}
        >>> state = tx.init(grads)
        >>> for _ in range(3):
        ...     updates, state = tx.update(grads, state)
        ...     print(updates["first"], updates["last"])
        -0.25 -1.0
        -0.5 -1.0
        -1.0 -1.0

    References:
        Yang et al., PipeMare, 2021, arXiv:1910.05124, technique T1, as we recall it: we
        could not read the equation again. The rule for delays below 1 is ours.
    """
    delay = layers.checked_numbers("delay", delay)

    def init_fn(params):
        layers.numbers_of("delay", delay, params)
        return RescheduleByDelayState(jnp.zeros((), jnp.int32))

    def update_fn(updates, state, params=None, **extra_args):
        done = dtypes.wide(state.step) / dtypes.wide(annealing_steps)
        power = 1.0 - jnp.minimum(done, 1.0)

        def factor(asked):
            tau = asked / jnp.asarray(microbatches, asked.dtype)
            return jnp.maximum(tau, 1.0) ** -power

        asked = layers.numbers_of("delay", delay, updates)
        factors = trees.broadcast("delay", jax.tree.map(factor, asked), updates)
        updates = jax.tree.map(dtypes.times, factors, updates)
        return updates, RescheduleByDelayState(state.step + 1)

    return transforms.stateful(RescheduleByDelayState, init_fn, update_fn)
