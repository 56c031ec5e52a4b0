"""Outer optimizers: a step of a second optimizer after several local steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from delayjax._src.averaging import means, periods
from delayjax._src.averaging.delayed_average import Merge, leaf_merge, overwriting
from delayjax._src.averaging.fragments import Fragments, Split
from delayjax._src.averaging.step_then_mix import step_then_mix
from delayjax._src.ground import axes, checks, transforms
from delayjax._src.history import ring, wrapped


class Fragment(NamedTuple):
    """What all workers know of a fragment."""

    center: Any  # x, of this fragment
    server_state: Any  # state of the server's optimizer


class Outer(NamedTuple):
    """Memory of `outer`."""

    fragments: tuple[Any, ...]  # a `Fragment` each; with `history` a ring with one item
    begun: Any  # x^i_(k), the worker's model in the exchange in flight; () at delay 0
    error: Any  # e^i, what compression has left out so far; () without `compress`


def outer(
    inner: transforms.Transformation,
    server: transforms.Transformation,
    *,
    period: ArrayLike,
    delay: int = 0,
    merge: Merge = overwriting,
    fragments: Fragments = 1,
    compress: Any = None,
    history: ring.Storage | None = None,
    axis_name: axes.AxisName | None = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DiLoCo: after H local steps, `server` takes a step with the models' mean change.

        x^i <- x^i + U(g^i)                          at every step
        dl   = x - (1/P) sum_j x^j_(k)               started where `period` divides k
        x   <- x + server(dl),
        x^i <- merge(x^i, x^i_(k), x)                after step k + d

    with x^i_(k) the model after k steps. dl, the pseudo-gradient, takes the place of a
    gradient: `server` descends it. A model in F fragments exchanges them in turn, one
    every H / F steps, each of them every H steps, with its own `server`.

    | method | options |
    |---|---|
    | DiLoCo | `inner=adamw(4e-4), server=sgd(0.7, 0.9, nesterov=True)`, H 20 to 500 |
    | MuLoCo | `inner=contrib.muon(0.044), server=sgd(0.9, 0.8, nesterov=True)`, H 30 |
    | Streaming DiLoCo | DiLoCo with `fragments`, `delay`, `merge=blended(0.5)`, H 100 |
    | SNOO | `axis_name=None, server=sgd(eta, mu, nesterov=True)` |
    | Lookahead | `axis_name=None, server=sgd(alpha)` |
    | local SGD | `server=sgd(1.0)` |

    Args:
        inner: each worker's own optimizer, U; its state is kept from round to round,
            and is not averaged: see `mean_of_state` and `reset_every`. Extra arguments
            reach it unchanged.
        server: the outer optimizer, any Optax transformation that reads gradients and
            parameters alone.
        period: H, local steps from one exchange of a fragment to its next, at least 1.
            F divides it. May be traced.
        delay: d, the local steps during which an exchange is in flight; fewer than H /
            F. Static.
        merge: how the new x and the local steps since the start make the worker's
            model: `overwriting` loses d local steps a round, `corrected` none,
            `blended(share)` keeps a share of the worker's own model.
        fragments: F, to cut the leaves in their order into parts of about one size; or
            the number 0, ..., F - 1 of each leaf's fragment: a prefix tree, or a
            function of a leaf's path, as "layers/kernel", and the leaf. A leaf that
            stacks L layers may have an array of L numbers, of shape [L] along its first
            axis, [1, L] along its second; do not shard it along that axis.
        compress: (tree, step) -> (message, restore), as `exchange.random_blocks(key,
            fraction)`: only the message of dl + e is sent, and what it leaves out is
            kept in e for the next exchange. By default all is sent.
        history: where x and the server's state are kept between exchanges, as
            `ring.on_host()`. By default they stay on the device.
        axis_name: the workers' axis, or several; None for one worker without an axis.

    Returns:
        A transformation whose state holds x and the server's state once; `inner`, one
        model (none at delay 0) and one model more with `compress` for each worker.
        Every H / F steps there is one all-reduce of a fragment. Evaluate x, the
        `center` of the state; at delay 0 all models are x after an exchange.

    Raises:
        ValueError: if `delay` or F does not fit to `period`; in `init`, if `fragments`
            does not number each leaf; in `update`, if the state is of another F.
        TypeError: in `init`, if the server needs an extra argument, such as the loss.

    Example:
        >>> tx = outer(optax.sgd(1.0), optax.sgd(0.5), period=2)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad * 0), grad * 0)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-2., -2.], dtype=float32))

    References:
        Douillard et al., DiLoCo, 2023, arXiv:2311.08105, algorithm 1, and Streaming
        DiLoCo, 2025, arXiv:2501.18512, as in the code pytorch/torchft; MuLoCo as in the
        same code; SNOO and Lookahead as commonly reported.
    """
    checks.check_function("merge", merge)
    if compress is not None:
        checks.check_function("compress", compress)
    at_center = transforms.as_transformation("server", server)
    every = checks.check_count("period", period)
    delay = checks.check_bound("delay", delay)
    storage = None if history is None else ring.as_storage(history)
    merge_leaf = leaf_merge(merge)
    number = isinstance(fragments, (int, np.generic, np.ndarray, jax.Array))
    if number and np.ndim(fragments) == 0:  # F; an array of more is for the one leaf
        fragments = checks.check_bound("fragments", fragments, at_least=1)
        _check_times(every, delay, fragments)

    def varied(tree):
        return tree if axis_name is None else axes.vary(tree, axis_name=axis_name)

    def mean(tree):
        return tree if axis_name is None else means.mean(tree, axis_name)

    def fresh(part):
        return Fragment(part, wrapped.init("server", at_center, part, wrapper="outer"))

    def first(fragment):
        if storage is None:
            return fragment
        return storage.push(storage.init(fragment, 1), fragment)

    def written(held, fragment):
        return fragment if storage is None else storage.push(held, fragment)

    def read(held, part):
        if storage is None:
            return held
        return storage.read(held, 0, jax.eval_shape(fresh, part))

    def begin(params):
        split = Split(fragments, params)
        _check_times(every, delay, split.count)
        _check_server(at_center, params)
        parts = [split.cut(params, number) for number in range(split.count)]
        model = varied(params)
        return Outer(
            fragments=tuple(first(fresh(part)) for part in parts),
            begun=model if delay else (),
            error=() if compress is None else optax.tree.zeros_like(model),
        )

    def sent(push, error, step):
        """The mean of what the workers send, and what each of them leaves out."""
        if compress is None:
            return mean(push), error
        whole = jax.tree.map(lambda p, e: (p + e).astype(e.dtype), push, error)
        message, restore = compress(whole, step)
        left = jax.tree.map(jnp.subtract, whole, restore(message))
        return restore(mean(message)), optax.tree.cast_like(left, error)

    def mix(step, memory, before, model):
        del before
        split = Split(fragments, model)
        checks.check_held("fragments", split.count, len(memory.fragments))
        for name, value, has in (
            ("delay", delay, memory.begun),
            ("compress", compress, memory.error),
        ):
            wanted = jax.tree.structure(model if value else ())
            checks.check_held(name, value, jax.tree.structure(has), wanted)
        apart = every // split.count
        done = step + 1

        def exchanged(number, held, begun, error, model):
            fragment = read(held, split.cut(model, number))
            part, start = (split.cut(tree, number) for tree in (model, begun))
            push = jax.tree.map(jnp.subtract, fragment.center, start)
            left = () if compress is None else split.cut(error, number)
            push, left = sent(push, left, step)
            moves, server_state = at_center.update(
                optax.tree.cast_like(push, fragment.center), *fragment[::-1]
            )
            center = optax.apply_updates(fragment.center, moves)
            part = jax.tree.map(merge_leaf, part, start, center)
            if compress is not None:
                error = split.replaced(error, number, left)
            model = split.replaced(model, number, part)
            held = written(held, Fragment(center, server_state))
            return held, varied(error), varied(model)

        begun, error = memory.begun if delay else model, memory.error
        after = []
        for number, held in enumerate(memory.fragments):
            since = done - delay - (number + 1) * apart
            arrives = periods.Due((since >= 0) & (since % every == 0))
            if isinstance(every, int) and every == 1:
                arrives = periods.Due(True, always=True)

            def exchange(held, error, model, number=number):
                return exchanged(number, held, begun, error, model)

            held, error, model = periods.choose(
                arrives,
                exchange,
                lambda *same: same,
                held,
                varied(error),
                varied(model),
            )
            after.append(held)
        if delay:
            begun = optax.tree.where(done % apart == 0, model, begun)
        return model, Outer(tuple(after), begun if delay else (), error)

    return step_then_mix("averaging.outer", inner, mix, axis_name, begin, alone=True)


def _check_times(period: Any, delay: int, count: int) -> None:
    """Checks that exchanges of `count` fragments follow one another."""
    if not isinstance(period, int):
        return
    if period % count:
        raise ValueError(
            f"`period` must be a multiple of the number of fragments, {count}, got"
            f" {period}: one is exchanged every period / {count} steps. Take"
            f" period={count * max(period // count, 1)}."
        )
    if delay >= period // count:
        raise ValueError(
            f"`delay` must be less than period / fragments, {period // count}, got"
            f" {delay}: one exchange is in flight at a time. Lengthen `period`, or take"
            " fewer `fragments`."
        )


def _check_server(server: optax.GradientTransformationExtraArgs, params: Any) -> None:
    """Checks that the server reads gradients and parameters alone."""
    state = jax.eval_shape(server.init, params)
    try:
        jax.eval_shape(server.update, params, state, params)
    except TypeError as error:
        if "required keyword" not in str(error):
            return  # `update` raises it, where the server sees arrays
        raise TypeError(
            "`server` must read gradients and parameters alone, but its update has a"
            f" {str(error).partition('missing ')[2]}: an outer step has no loss. Take"
            " for example optax.sgd(0.7, momentum=0.9, nesterov=True)."
        ) from None
