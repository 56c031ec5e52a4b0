"""Kardam: refuses gradients that change too fast, and workers that send too often."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from delayjax._src.ground import (
    checks,
    donation,
    dtypes,
    extras,
    kinds,
    transforms,
)
from delayjax._src.history import ring as rings
from delayjax._src.rules import norms
from delayjax._src.rules.refusing import refusing

_MODEL = f"{extras.IN_EACH}; `replay` hands on the parameters as well"


class LipschitzState(NamedTuple):
    """The memory of the Lipschitz filter of `kardam`."""

    # of each worker
    gradients: Any  # its last gradient, leaves [P, *shape]; narrow floats as integers
    models: Any  # the parameters at which it was taken, leaves [P, *shape]
    has_sent: jax.Array  # whether there is such a gradient, bool [P]
    coefficients: jax.Array  # its last `window`, or -1, in rows, real [P window]
    # of the server
    last_gradient: Any  # the last accepted gradient
    last_params: Any  # the parameters when the last gradient arrived
    move: jax.Array  # its last move that was not zero, or 0, real []
    refused_in_row: jax.Array  # gradients, since this filter accepted one, int32 []


class KardamMemory(NamedTuple):
    """The memory of `kardam`."""

    accepted: jax.Array  # gradients accepted so far, int32 []
    # of the last accepted gradients, or -1, int32 [2 f]; () without this filter
    last_workers: Any
    lipschitz: Any  # `LipschitzState`, or () without this filter


@kinds.checked
def kardam(
    inner: transforms.Transformation,
    *,
    workers: kinds.PositiveInt,
    attackers: kinds.NonNegativeInt,
    lipschitz: bool = True,
    frequency: bool = True,
    window: kinds.PositiveInt = 26,
    patience: kinds.Count | None = None,
) -> optax.GradientTransformationExtraArgs:
    """Kardam: refuses gradients that change too fast or come from one worker too often.

    With P workers, f of them attackers, a gradient g of worker p, taken at the model y,
    is accepted if both filters accept it.

    *Lipschitz filter*: with g', y' the worker's gradient before and its model, G the
    last accepted gradient, and X the server's parameters x before G moved them,

        Kh_p = |g - g'| / |y - y'|              the largest of the last `window`
        |g - G| / |x - X|  <=  the (P - f)/P quantile of Kh_1 .. Kh_P

    where |.| is the norm of the whole tree. A gradient is also accepted if no Kh is
    known yet, and if this filter has refused `patience` gradients in a row. This last
    exception is a weakness: after `patience` refused gradients a lie is accepted. The
    quantile is the nearest rank, the (P - f)-th smallest of P. It is lower than a
    quantile that is interpolated between ranks, so more honest gradients are refused,
    and `patience` ends more often: of 10 runs of ours without the frequency filter,
    with times that vary by 5 %, three attackers of ten that flipped the sign made 2
    diverge. With the frequency filter, or with a `patience` of 10^6, none diverged.

    *Frequency filter*: p is not among the workers of the last 2 f gradients accepted.
    So of 2 f + 1 gradients accepted in a row at least f + 1 are of honest workers. If
    honest workers arrive in random order, it accepts (P - 2 f)/P of their gradients.
    This filter decides first: a gradient that it refuses does not count to `patience`.

    Args:
        inner: the *whole* optimizer, see `refusing`. The paper's dampening is a part of
            it: `optax.chain(optax.sgd(0.1),
            scale_by_staleness(modulation.exponential(0.2)))`. In `replay` a refused
            gradient adds nothing to the staleness of others, which counts accepted
            gradients. With irregular times the dampening lets more lies pass.
        workers: P, at least 2 f + 1; the paper assumes P >= 3 f + 1.
        attackers: f, the largest number of attackers.
        lipschitz: whether the Lipschitz filter is on.
        frequency: whether the frequency filter is on.
        window: the number of coefficients kept of each worker; 26 in the paper's code.
            1 keeps the latest coefficient alone.
        patience: the number of gradients; by default P, as in the paper's code. May be
            traced.

    Returns:
        A transformation with the state of `refusing`, whose memory holds (2 P + 2)
        gradients, or none without the Lipschitz filter. With a donated state one of
        them is written in place. `update` needs `worker=`, and with the Lipschitz
        filter `params` and `stale_params=`, which `replay` supplies. Use it as `tx` of
        a `replay` with one gradient an update: x should move with each accepted
        gradient. If x did not move since the last accepted gradient, its last move is
        used. Inside `delayed` it would receive the number of the current worker, not of
        the worker that sent the late gradient.

        Two counters show whether it stalls: `dropped` counts the refused gradients, and
        `dropped_in_row` the gradients refused since the last accepted gradient. If this
        is more than `patience`, the frequency filter waits for a worker that is dead,
        or gradients are not finite. Such gradients are always refused, and also the
        gradients of a worker whose number is not in 0 .. P - 1.

    Raises:
        ValueError: if P <= 2 f.
        TypeError: in `update`, if a tree is not like the gradients.

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
    if workers <= 2 * attackers:
        raise ValueError(
            f"`workers` must be above twice `attackers`, {attackers}, got {workers}."
        )
    recent = 2 * attackers if frequency else 0
    patience = workers if patience is None else patience

    def begin(params):
        return KardamMemory(
            accepted=jnp.zeros((), jnp.int32),
            last_workers=jnp.full(recent, -1, jnp.int32) if recent else (),
            lipschitz=_no_gradients(params, workers, window) if lipschitz else (),
        )

    def accept(
        updates, memory, params, *, worker=None, stale_params=None, **extra_args
    ):
        worker = extras.worker_of("kardam", worker, workers)
        used = (worker >= 0) & (worker < workers)
        last_workers, filtered = memory.last_workers, memory.lipschitz
        checks.check_held("attackers", attackers, len(last_workers) // 2, recent // 2)
        checks.check_held("lipschitz", lipschitz, bool(filtered))
        if recent:
            used &= (worker != last_workers).all()
        if lipschitz:
            checks.check_held("workers", workers, len(filtered.has_sent))
            sizes = len(filtered.coefficients), workers * window
            checks.check_held("window", window, *sizes)
            extras.require_params(params, "kardam")
            model = extras.stale_params_of("kardam", updates, stale_params, _MODEL)
            extras.check_shapes("kardam", updates, params=params)
            filtered = _measured(filtered, updates, model, worker)
            filtered = _moved(filtered, params, has_last=memory.accepted > 0)
            used, filtered = smooth(filtered, updates, used)
        else:
            used &= jnp.isfinite(norms.norm(updates))
        if recent:
            with_this = jnp.append(last_workers, worker)[1:]
            last_workers = jnp.where(used, with_this, last_workers)
        accepted = memory.accepted + used.astype(jnp.int32)
        return used, updates, KardamMemory(accepted, last_workers, filtered)

    def smooth(memory, updates, passes):
        """Whether a gradient passes the Lipschitz filter as well, and its memory."""
        change = norms.distance(updates, memory.last_gradient)
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


def _no_gradients(params: Any, workers: int, window: int) -> LipschitzState:
    """The memory of the Lipschitz filter before the first gradient."""
    real = dtypes.real_dtype(params)
    return LipschitzState(
        gradients=rings.init(params, workers).slots,
        models=rings.init(params, workers).slots,
        has_sent=jnp.zeros(workers, bool),
        coefficients=jnp.full(workers * window, -1.0, real),
        last_gradient=optax.tree.zeros_like(params),
        last_params=optax.tree.zeros_like(params),
        move=jnp.zeros((), real),
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
    change, move = (
        norms.distance(gradient, before[0]),
        norms.distance(model, before[1]),
    )
    # the writes depend on the distances, and so on the rows that they overwrite:
    # otherwise XLA would copy all workers' gradients to read the old one
    kept = (slot == worker) & jnp.isfinite(change + move)
    gradient, model = optax.tree.where(kept, (gradient, model), before)
    rows = memory.coefficients.reshape(workers, -1)
    row = rows[slot]
    is_measured = kept & memory.has_sent[slot] & (move > 0)
    with_this = jnp.append(row[1:], (change / move).astype(row.dtype))
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
    distance = norms.distance(params, memory.last_params)
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
