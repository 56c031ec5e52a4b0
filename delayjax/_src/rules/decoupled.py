"""The last part of AdamW: decoupled weight decay, and the learning rate."""

from typing import Any

import jax

from delayjax._src.ground import checks, dtypes, extras, kinds, transforms


@kinds.checked
class Decoupled:
    """Decoupled weight decay, which shrinks the parameters, and the learning rate.

        x <- (1 - eta lam) x
        x <- x - eta u

    Optax's `add_decayed_weights` and `scale_by_learning_rate` take the same step. But
    they return the dtype of eta, and round u to bfloat16 before the decay is added.
    """

    def __init__(
        self,
        rule: str,
        learning_rate: kinds.Rate,
        weight_decay: kinds.NonNegative,
    ):
        """Checks eta, a number or a schedule, and lam; errors name the rule."""
        self._decay = checks.known(weight_decay)  # in `jit` too
        self._rule, self._rate = rule, learning_rate

    def updates(self, directions: Any, step: jax.Array, params: Any, like: Any) -> Any:
        """-eta (u + lam x) of the directions u, in the dtypes of `like`."""
        rate = transforms.rate_at(self._rate, step)

        def decay(u, x):
            lam, u, x = dtypes.in_one_dtype(self._decay, u, x)
            return u + lam * x

        def descend(u, leaf):
            eta, u = dtypes.in_one_dtype(rate, u)
            return (-eta * u).astype(leaf.dtype)

        if not checks.is_concrete(self._decay) or self._decay > 0.0:
            params = extras.require_params(params, self._rule)
            directions = jax.tree.map(decay, directions, params)
        return jax.tree.map(descend, directions, like)
