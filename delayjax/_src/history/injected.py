"""Staleness that the user sets in the state."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import extras, refusal, transforms
from delayjax._src.history import wrapped


@refusal.register_producer
class InjectStalenessState(NamedTuple):
    """State of `inject_staleness`."""

    staleness: jax.Array  # of the next gradient, in steps, int32 []: set it
    inner_state: Any


def inject_staleness(
    inner: transforms.Transformation,
) -> optax.GradientTransformationExtraArgs:
    """Hands `inner` a staleness that is a leaf of the state.

    Use it in trainers that call `update(grads, state, params)` without extra arguments.
    Set the leaf before the step: `inner` receives it as `staleness=`. The leaf keeps
    its value until you set it again. A `staleness=` that `update` receives, and the
    staleness of a `delayed` in `inner`, are added to it.

    Args:
        inner: the transformation that reads the staleness.

    Example:
        >>> import delayjax as dj
        >>> law = dj.scale_by_staleness(dj.modulation.inverse)
        >>> tx = inject_staleness(optax.chain(optax.sgd(1.0), law))
        >>> state = tx.init(jnp.zeros(()))
        >>> state = state._replace(staleness=jnp.int32(4))
        >>> float(tx.update(jnp.ones(()), state)[0])
        -0.25
    """
    inner = transforms.as_transformation("inner", inner)

    def init_fn(params):
        inner_state = wrapped.init("inner", inner, params, late=False)
        return InjectStalenessState(jnp.zeros((), jnp.int32), inner_state)

    def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
        name = "inject_staleness"
        updates, total = extras.staleness_of(name, updates, state.staleness, mean=False)
        if staleness is not None:
            updates, given = extras.staleness_of(name, updates, staleness)
            total = jax.tree.map(lambda age: age + total, given)
        updates, inner_state = inner.update(
            updates, state.inner_state, params, staleness=total, **extra_args
        )
        return updates, state._replace(inner_state=inner_state)

    return transforms.stateful(InjectStalenessState, init_fn, update_fn)
