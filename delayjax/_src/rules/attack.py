"""Workers that lie, to test a defense.

`optax.clip_by_global_norm` in front of the optimizer is the simplest defense: no
gradient moves the parameters by more than its bound, however large it is.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import checks, extras, transforms


def attack(
    inner: optax.GradientTransformation, *, attackers: Any
) -> optax.GradientTransformationExtraArgs:
    """Lets some workers lie: their gradients are replaced by the output of `inner`.

        g <- inner(g)   if the worker is one of the attackers, else g

    | attack | `inner` |
    |---|---|
    | sign flip | `optax.scale(-1.0)` |
    | scaling | `optax.scale(-10.0)` |
    | omission | `optax.set_to_zero()` |
    | noise | `optax.add_noise(variance, 0.0, key)` |

    Put this rule before the rule that you test with it: in `each` of `replay`, or first
    in a chain.

    Args:
        inner: the transformation that makes the attackers' gradients. It sees all
            gradients.
        attackers: the numbers of the workers that attack, integers [n]. May be traced.

    Returns:
        A transformation with the state of `inner`, which needs `worker=`, a number that
        `replay` supplies. With workers as an axis, hand on
        `worker=jax.lax.axis_index("workers")`: there attackers with the same state add
        the same noise.

    Example:
        >>> tx = attack(optax.scale(-10.0), attackers=[0, 3])
        >>> state = tx.init(jnp.ones(()))
        >>> [float(tx.update(jnp.ones(()), state, worker=w)[0]) for w in range(4)]
        [-10.0, 1.0, 1.0, -10.0]

    References:
        Damaskinos et al., Asynchronous Byzantine machine learning, ICML 2018,
        arXiv:1802.07928 (the attackers of Kardam).
    """
    inner = transforms.as_transformation("inner", inner)
    attackers = jnp.asarray(
        checks.as_counts("attackers", attackers, listed=True), jnp.int32
    )

    def update_fn(updates, state, params=None, *, worker=None, **extra_args):
        worker = extras.worker_of("attack", worker)
        lies, state = inner.update(updates, state, params, worker=worker, **extra_args)
        is_attacker = (worker == attackers).any()
        updates = jax.tree.map(
            lambda lie, g: jnp.where(is_attacker, lie, g).astype(g.dtype), lies, updates
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)
