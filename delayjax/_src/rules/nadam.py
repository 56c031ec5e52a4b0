"""NAdam with a momentum that rises slowly: the look-ahead of AsyncPP."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import dtypes, kinds, transforms
from delayjax._src.rules import norms
from delayjax._src.rules.decoupled import Decoupled


class NadamState(NamedTuple):
    """State of `nadam`."""

    step: jax.Array  # updates done, int32 []
    ramp_product: jax.Array  # p, the product of all mu so far, float32 []
    mean: Any  # m, moving mean of g, at least float32
    mean_square: Any  # v, moving mean of |g|^2, real, at least float32


@kinds.checked
def nadam(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: kinds.Share = 0.99,
    b2: kinds.Share = 0.999,
    eps: kinds.Positive = 1e-8,
    weight_decay: kinds.NonNegative = 0.0,
    momentum_decay: kinds.NonNegative = 0.004,
) -> optax.GradientTransformationExtraArgs:
    """NAdam with a momentum that rises slowly: the look-ahead of AsyncPP.

    In update t = 1, 2, ..., with psi = momentum_decay,

        mu_t = b1 (1 - 0.5 * 0.96^{psi t})
        p_t  = mu_1 mu_2 ... mu_t
        m   <- b1 m + (1 - b1) g
        v   <- b2 v + (1 - b2) g^2
        n    = ((1 - mu_t) / (1 - p_t)) g + (mu_{t+1} / (1 - p_t mu_{t+1})) m
        D    = sqrt(v / (1 - b2^t)) + eps
        x   <- (1 - eta lam) x
        x   <- x - eta n / D

    mu is the share of m in the step. It rises from b1 / 2 to b1. With the defaults it
    is 0.495 at first, 0.63 at update 2000, and half of the rise is done at update 4245.
    So a run of 2000 updates tests shares of 0.5 to 0.63, and none near 0.99. The
    published runs had 50,000 updates. `momentum_decay=200 / T` gives a run of T updates
    the same rise. At psi = 0 mu stays at b1 / 2.

    m has no bias correction of its own. So after update 1 steps are shorter, for some
    1 / (1 - b1) updates, as in the example. `optax.nadamw` corrects m and has no rise;
    it is the limit of a large psi.

    Args:
        learning_rate: eta, a number or a schedule; in the paper's runs 3e-4, after a
            warm-up, with a cosine to a tenth.
        b1: in [0, 1). May be traced, as all other numbers.
        b2: in [0, 1).
        eps: positive, outside of the root.
        weight_decay: lam, non-negative, of all parameters; 0.01 in the paper's runs.
        momentum_decay: psi, non-negative, per update.

    Returns:
        A transformation whose state has two trees like the parameters, in at least
        float32. Updates keep the dtype of the gradients. `update` needs `params` where
        there is weight decay.

    Example:
        >>> tx = nadam(1.0)
        >>> state = tx.init(jnp.zeros(()))
        >>> for t in range(1, 501):
        ...     update, state = tx.update(jnp.ones(()), state)
        ...     if t in (1, 10, 100, 500):
        ...         print(t, f"{update:.2f}")
        1 -1.01
        10 -0.55
        100 -0.82
        500 -1.00

    References:
        Ajanthan et al., Nesterov method for asynchronous pipeline parallel
        optimization, ICML 2025, arXiv:2505.01099. The equation is PyTorch's
        `torch.optim.NAdam` with decoupled weight decay, which the paper's program,
        PluralisResearch/AsyncPP, runs in each stage. It was compared with PyTorch's
        steps, and not with the equations of the paper.
    """
    decoupled = Decoupled("nadam", learning_rate, weight_decay)

    def ramp(t):
        return b1 * (1.0 - 0.5 * 0.96 ** (t * momentum_decay))

    def init_fn(params):
        return NadamState(
            step=jnp.zeros((), jnp.int32),
            ramp_product=jnp.ones((), jnp.result_type(float)),
            mean=dtypes.wide_zeros(params),
            mean_square=dtypes.real_zeros(params),
        )

    def update_fn(updates, state, params=None, **extra_args):
        step = state.step + 1
        t = step.astype(state.ramp_product.dtype)
        now, after = ramp(t), ramp(t + 1.0)
        product = state.ramp_product * now
        of_gradient = (1.0 - now) / (1.0 - product)
        of_mean = after / (1.0 - product * after)
        mean = norms.moving_mean(updates, state.mean, b1)
        mean_square = norms.moving_mean_square(updates, state.mean_square, b2)

        def direction(gradient, m, v):
            g, m, v, alpha, beta, bias = dtypes.in_one_dtype(
                gradient, m, v, of_gradient, of_mean, 1.0 - b2**t
            )
            return (alpha * g + beta * m) / (jnp.sqrt(v / bias) + eps)

        directions = jax.tree.map(direction, updates, mean, mean_square)
        moves = decoupled.updates(directions, state.step, params, updates)
        product = product.astype(state.ramp_product.dtype)
        return moves, NadamState(step, product, mean, mean_square)

    return transforms.stateful(NadamState, init_fn, update_fn)
