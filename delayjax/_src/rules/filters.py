"""Rules that refuse gradients, and attacks to try them on.

`optax.clip_by_global_norm` in front of the optimizer is the simplest defense: no
gradient moves the parameters by more than its bound, however large it is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.ground import (
    axes,
    checks,
    donation,
    dtypes,
    extras,
    transforms,
    trees,
)
from delayjax._src.history import ring as rings
from delayjax._src.rules.refusing import refusing

_WORKER = (
    "put the rule into `each` of `replay`, or into its `tx` where each update has one"
    " gradient"
)
_MODEL = f"{_WORKER}; `replay` hands on the parameters as well"
_PARAMS = "call `update(grads, state, params)`"


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

    Put this rule before the rule that it tries: in `each` of `replay`, or first in a
    chain.

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
    attackers = _numbers(attackers)

    def update_fn(updates, state, params=None, *, worker=None, **extra_args):
        worker = _check_worker("attack", worker)
        lies, state = inner.update(updates, state, params, worker=worker, **extra_args)
        is_attacker = (worker == attackers).any()
        updates = jax.tree.map(
            lambda lie, g: jnp.where(is_attacker, lie, g).astype(g.dtype), lies, updates
        )
        return updates, state

    return optax.GradientTransformationExtraArgs(inner.init, update_fn)


class LipschitzState(NamedTuple):
    """What the Lipschitz filter of `kardam` remembers."""

    # of each worker
    gradients: Any  # its last, leaves [P, *shape]; narrow floats as integers
    models: Any  # the parameters at which it took them, leaves [P, *shape]
    has_sent: jax.Array  # whether there is such a gradient, bool [P]
    coefficients: jax.Array  # its last `window`, -1: none, in rows, float32 [P window]
    # of the server
    last_gradient: Any  # accepted
    last_params: Any  # when the last gradient arrived
    move: jax.Array  # its last move that was not zero, or 0, float32 []
    refused_in_row: jax.Array  # by this filter since the last one accepted, int32 []


class KardamMemory(NamedTuple):
    """What `kardam` remembers."""

    accepted: jax.Array  # gradients accepted so far, int32 []
    # of the last gradients accepted, -1: none, int32 [2 f]; () without this filter
    last_workers: Any
    lipschitz: Any  # `LipschitzState`, or () without this filter


def kardam(
    inner: transforms.Transformation,
    *,
    workers: int,
    attackers: int,
    lipschitz: bool = True,
    frequency: bool = True,
    window: int = 26,
    patience: ArrayLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Kardam: refuses gradients that change too fast or come from one worker too often.

    With P workers, f of them attackers, a gradient g of worker p, taken at the model y,
    is accepted if both filters accept it.

    *Lipschitz filter*: with g', y' of the worker's gradient before, and G, X the last
    gradient accepted and the server's parameters x before it moved them,

        Kh_p = |g - g'| / |y - y'|              the largest of the last `window`
        |g - G| / |x - X|  <=  the (P - f)/P quantile of Kh_1 .. Kh_P

    where |.| is the norm of the whole tree. A gradient is also accepted if no Kh is
    known yet, and if this filter has refused `patience` gradients in a row. The latter
    is a hole: behind so many refused gradients a lie is accepted.

    *Frequency filter*: p is not among the workers of the last 2 f gradients accepted.
    So of 2 f + 1 gradients accepted in a row at least f + 1 are of honest workers. If
    honest workers arrive in random order, it accepts (P - 2 f)/P of their gradients.
    This filter judges first: a gradient that it refuses does not count to `patience`.

    Args:
        inner: the *whole* optimizer, see `refusing`. The paper's dampening stands in
            it: `optax.chain(optax.sgd(0.1),
            scale_by_staleness(modulation.exponential(0.2)))`. In `replay` a refused
            gradient ages nobody, so the staleness counts the gradients accepted. With
            irregular times the dampening lets more lies pass.
        workers: P, at least 2 f + 1; the paper assumes P >= 3 f + 1.
        attackers: f, the largest number of attackers.
        lipschitz: whether the Lipschitz filter is on.
        frequency: whether the frequency filter is on.
        window: the number of coefficients kept of each worker; 26 in the paper's code.
            1 compares with the latest one.
        patience: in gradients; by default P, as in the paper's code. May be traced.

    Returns:
        A transformation with the state of `refusing`, whose memory holds (2 P + 2)
        gradients, or none without the Lipschitz filter. With a donated state one of
        them is written in place. `update` needs `worker=`, and with the Lipschitz
        filter `params` and `stale_params=`, which `replay` supplies. It stands in `tx`
        of a `replay` with one gradient an update: x should move with each gradient
        accepted. If x did not move since the last one, its last move is taken. In
        `delayed` it would hear of today's worker, not of the worker of a late gradient.

        Nothing stalls in silence: `dropped` counts the gradients refused, and
        `dropped_in_row` those since the last one accepted. More than `patience` of them
        in a row mean that the frequency filter waits for a worker that is dead, or that
        gradients are not finite. Such gradients are always refused, and so is a worker
        whose number is not in 0 .. P - 1.

    Raises:
        ValueError: if P <= 2 f, both filters are off, or (in `update`) a tree is not
            like the gradients.

    Example:
        >>> tx = kardam(optax.sgd(1.0), workers=3, attackers=1, lipschitz=False)
        >>> state = tx.init(jnp.zeros(()))
        >>> for worker in (0, 1, 1, 2, 0):
        ...     update, state = tx.update(jnp.ones(()), state, worker=worker)
        ...     print(update, state.dropped)
        -1.0 0
        -1.0 0
        0.0 1
        -1.0 1
        -1.0 1

    References:
        Damaskinos, El Mhamdi, Guerraoui, Patra and Taziki, Asynchronous Byzantine
        machine learning (the case of SGD), ICML 2018, arXiv:1802.07928; window and
        patience as in github.com/gdamaskinos/kardam. The frequency filter is the
        stricter form that cannot lock: its condition holds from the first step.
    """
    workers = checks.check_bound("workers", workers, at_least=1)
    attackers = checks.check_bound("attackers", attackers)
    if workers <= 2 * attackers:
        raise ValueError(
            f"`workers` must be more than twice `attackers`, got {workers} workers and"
            f" {attackers} attackers: an honest minority cannot be told from them."
        )
    if not lipschitz and not frequency:
        raise ValueError(
            "`lipschitz` and `frequency` must not both be off, got False and False: use"
            " `inner` alone."
        )
    window = checks.check_bound("window", window, at_least=1)
    recent = 2 * attackers if frequency else 0
    patience = workers if patience is None else patience
    if checks.is_concrete(patience):
        patience = checks.check_bound("patience", patience, at_least=1)

    def begin(params):
        return KardamMemory(
            accepted=jnp.zeros((), jnp.int32),
            last_workers=jnp.full(recent, -1, jnp.int32) if recent else (),
            lipschitz=_no_gradients(params, workers, window) if lipschitz else (),
        )

    def accept(
        updates, memory, params, *, worker=None, stale_params=None, **extra_args
    ):
        extras.check_gradients("kardam", updates)
        worker = _check_worker("kardam", worker, workers)
        used = (worker >= 0) & (worker < workers)
        last_workers, filtered = memory.last_workers, memory.lipschitz
        if recent:
            used &= (worker != last_workers).all()
        if lipschitz:
            extras.require(params, "params", "kardam", _PARAMS)
            extras.require(stale_params, "stale_params", "kardam", _MODEL)
            model = trees.masked_like(stale_params, updates)
            extras.check_shapes("kardam", updates, params=params, stale_params=model)
            filtered = _measured(filtered, updates, model, worker)
            filtered = _moved(filtered, params, has_last=memory.accepted > 0)
            used, filtered = smooth(filtered, updates, used)
        if recent:
            with_this = jnp.append(last_workers, worker)[1:]
            last_workers = jnp.where(used, with_this, last_workers)
        accepted = memory.accepted + used.astype(jnp.int32)
        return used, updates, KardamMemory(accepted, last_workers, filtered)

    def smooth(memory, updates, passes):
        """Whether a gradient passes the Lipschitz filter as well, and its memory."""
        change = _distance(updates, memory.last_gradient)
        rows = memory.coefficients.reshape(workers, window)
        used = change <= _limit(rows, attackers) * memory.move
        used |= (memory.move == 0) | (memory.refused_in_row >= patience)
        used &= passes & jnp.isfinite(change)
        new = optax.tree.cast_like(updates, memory.last_gradient)
        refused = passes.astype(jnp.int32)
        return used, memory._replace(
            last_gradient=optax.tree.where(used, new, memory.last_gradient),
            refused_in_row=jnp.where(used, 0, memory.refused_in_row + refused),
        )

    return refusing(inner, accept, begin=begin)


class ZenoMemory(NamedTuple):
    """What `zeno_plus_plus` remembers."""

    step: jax.Array  # gradients received so far, int32 []
    validation: Any  # the gradient of the validation data


def zeno_plus_plus(
    inner: transforms.Transformation,
    grad_fn: Callable[[Any], Any],
    *,
    learning_rate: ArrayLike,
    rho: ArrayLike,
    eps: ArrayLike,
    refresh_every: ArrayLike,
) -> optax.GradientTransformationExtraArgs:
    """Zeno++: refuses gradients that do not descend on the server's own data.

    With v the gradient of a validation loss, new at every `refresh_every`-th gradient,

        g <- g |v| / |g|
        accept g if  eta <v, g> - rho |g|^2 >= -eta eps

    where |.| is the norm of the whole tree. A gradient of zeros stays zero.

    Args:
        inner: the *whole* optimizer, see `refusing`.
        grad_fn: parameters -> the gradients of a loss on data that the server trusts.
        learning_rate: eta, the optimizer's, positive. May be traced.
        rho: the weight of the squared norm, non-negative. May be traced.
        eps: the ascent allowed, non-negative. May be traced.
        refresh_every: in gradients that arrive, refused ones too. At least 1. May be
            traced.

    Returns:
        A transformation with the state of `refusing`, whose memory holds one gradient.
        It needs `params` in `update`, and no `worker=`, so it stands around the
        server's optimizer, or in `each` of `replay` around `optax.identity()`. A
        gradient whose norm is not finite is refused. Under a `vmap` with a batched
        `step`, `grad_fn` is computed for each gradient.

    Raises:
        TypeError: in `update`, if `grad_fn` returns another tree than the parameters'.

    Example:
        >>> tx = zeno_plus_plus(
        ...     optax.sgd(1.0), lambda x: x, learning_rate=1.0, rho=0.1, eps=0.0,
        ...     refresh_every=10)
        >>> x = jnp.asarray(2.0)
        >>> state = tx.init(x)
        >>> for gradient in (3.0, -1.0):
        ...     update, state = tx.update(jnp.asarray(gradient), state, x)
        ...     print(update, state.dropped)
        -2.0 0
        0.0 1

    References:
        Xie, Koyejo and Gupta, Zeno++: Robust fully asynchronous SGD, ICML 2020,
        arXiv:1903.07020, algorithm 1.
    """
    if not callable(grad_fn):
        raise TypeError(
            f"`grad_fn` must be a function of the parameters, got {grad_fn!r}: pass for"
            " example jax.grad(validation_loss)."
        )
    checks.check_number("learning_rate", learning_rate, positive=True)
    checks.check_number("rho", rho)
    checks.check_number("eps", eps)
    if checks.is_concrete(refresh_every):
        refresh_every = checks.check_bound("refresh_every", refresh_every, at_least=1)

    def begin(params):
        return ZenoMemory(jnp.zeros((), jnp.int32), optax.tree.zeros_like(params))

    def accept(updates, memory, params, **extra_args):
        extras.check_gradients("zeno_plus_plus", updates)
        extras.require(params, "params", "zeno_plus_plus", _PARAMS)
        # both may differ on each worker, one before the other
        before = axes.typed_like(memory.validation, params)
        validation = jax.lax.cond(
            memory.step % refresh_every == 0,
            lambda: _validated(grad_fn, params, before),
            lambda: before,
        )
        size, wanted = _norm(updates), _norm(validation)
        factor = jnp.where(size > 0, wanted / size, 0.0)
        updates = jax.tree.map(lambda g: dtypes.times(factor, g), updates)
        descent = learning_rate * _product(validation, updates)
        penalty = rho * jnp.square(_norm(updates))
        used = descent - penalty >= -jnp.multiply(learning_rate, eps)
        used &= jnp.isfinite(size)
        return used, updates, ZenoMemory(memory.step + 1, validation)

    return refusing(inner, accept, begin=begin)


def _validated(grad_fn: Callable[[Any], Any], params: Any, like: Any) -> Any:
    """The validation gradient at the parameters, typed as the one before."""
    gradient = grad_fn(params)
    rule = "`grad_fn(params)` must return gradients like the parameters"
    trees.check_alike(rule, gradient, params)
    return axes.typed_like(gradient, like)


def _no_gradients(params: Any, workers: int, window: int) -> LipschitzState:
    """The memory of the Lipschitz filter before the first gradient."""
    return LipschitzState(
        gradients=rings.init(params, workers).slots,
        models=rings.init(params, workers).slots,
        has_sent=jnp.zeros(workers, bool),
        coefficients=jnp.full(workers * window, -1.0, jnp.float32),
        last_gradient=optax.tree.zeros_like(params),
        last_params=optax.tree.zeros_like(params),
        move=jnp.zeros((), jnp.float32),
        refused_in_row=jnp.zeros((), jnp.int32),
    )


def _measured(
    memory: LipschitzState, gradient: Any, model: Any, worker: jax.Array
) -> LipschitzState:
    """The memory with a worker's new gradient, and its coefficient from the last two.

    A gradient that is not finite is not kept.
    """
    workers = len(memory.has_sent)
    slot = jnp.clip(worker, 0, workers - 1)
    before = (
        rings.item_in(memory.gradients, slot, gradient),
        rings.item_in(memory.models, slot, model),
    )
    change, move = _distance(gradient, before[0]), _distance(model, before[1])
    # the writes depend on the distances, so on what they overwrite: else XLA would copy
    # all workers' gradients to read the old one
    kept = (slot == worker) & jnp.isfinite(change + move)
    gradient, model = optax.tree.where(kept, (gradient, model), before)
    rows = memory.coefficients.reshape(workers, -1)
    row = rows[slot]
    is_measured = kept & memory.has_sent[slot] & (move > 0)
    with_this = jnp.append(row[1:], change / move)
    return memory._replace(
        gradients=rings.with_item(memory.gradients, slot, gradient),
        models=rings.with_item(memory.models, slot, model),
        has_sent=memory.has_sent.at[slot].set(memory.has_sent[slot] | kept),
        coefficients=rows.at[slot].set(jnp.where(is_measured, with_this, row)).ravel(),
    )


def _moved(
    memory: LipschitzState, params: Any, *, has_last: jax.Array
) -> LipschitzState:
    """The memory with the server's last move: only an accepted gradient moves it."""
    distance = _distance(params, memory.last_params)
    return memory._replace(
        move=jnp.where(has_last & (distance > 0), distance, memory.move),
        # a copy: eagerly it would be the buffer of the parameters
        last_params=jax.tree.map(donation.copied, params),
    )


def _limit(coefficients: jax.Array, attackers: int) -> jax.Array:
    """The (P - f)/P quantile of the workers' largest coefficients, inf without any."""
    workers = len(coefficients)
    largest = coefficients.max(axis=1)
    is_known = largest >= 0
    known = is_known.sum(dtype=jnp.int32)
    rank = -((-known * (workers - attackers)) // workers)  # rounded up
    ordered = jnp.sort(jnp.where(is_known, largest, jnp.inf))
    return jnp.where(known > 0, ordered[jnp.maximum(rank, 1) - 1], jnp.inf)


def _distance(tree: Any, other: Any) -> jax.Array:
    """The norm of a difference, float32 []."""
    squares = jax.tree.map(
        lambda a, b: jnp.square(jnp.abs(dtypes.wide(a) - dtypes.wide(b))).sum(),
        tree,
        other,
    )
    total = sum(jax.tree.leaves(squares), jnp.zeros((), jnp.float32))
    return jnp.sqrt(total).astype(jnp.float32)


def _norm(tree: Any) -> jax.Array:
    """The norm of a tree, float32 []."""
    return _distance(tree, optax.tree.zeros_like(tree))


def _product(tree: Any, other: Any) -> jax.Array:
    """The real part of <tree, other>, float32 []."""
    products = jax.tree.map(
        lambda a, b: (dtypes.wide(a).conj() * dtypes.wide(b)).real.sum(), tree, other
    )
    total = sum(jax.tree.leaves(products), jnp.zeros((), jnp.float32))
    return jnp.asarray(total, jnp.float32)


def _numbers(attackers: Any) -> jax.Array:
    """The attackers' numbers, int32 [n]."""
    numbers = checks.as_array("attackers", attackers)
    if numbers.size == 0:
        numbers = np.zeros(0, np.int32)
    is_concrete = checks.is_concrete(numbers)
    is_listed = numbers.ndim == 1 and jnp.issubdtype(numbers.dtype, jnp.integer)
    if not is_listed or (is_concrete and (np.asarray(numbers) < 0).any()):
        raise ValueError(
            "`attackers` must be a list of workers' numbers, which are non-negative"
            f" integers, got {attackers!r}."
        )
    return jnp.asarray(numbers, jnp.int32)


def _check_worker(needed_by: str, worker: Any, workers: int | None = None) -> jax.Array:
    """A worker's number, int32 []."""
    extras.require(worker, "worker", needed_by, _WORKER)
    is_number = jnp.ndim(worker) == 0 and jnp.issubdtype(
        jnp.result_type(worker), jnp.integer
    )
    most = np.inf if workers is None else workers - 1
    if not is_number or (
        checks.is_concrete(worker) and not 0 <= checks.known(worker) <= most
    ):
        rule = "a non-negative integer" if workers is None else f"in 0 .. {most}"
        raise ValueError(
            f"`worker` handed to `{needed_by}` must be a worker's number, {rule}, got"
            f" {worker!r}."
        )
    return jnp.asarray(worker, jnp.int32)
