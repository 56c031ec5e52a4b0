"""Outer optimizers: a step of a second optimizer after several local steps."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from delayjax._src.averaging import means, periods, slices
from delayjax._src.averaging.delayed_average import Merge, leaf_merge, overwriting
from delayjax._src.averaging.fragments import Fragments, Split
from delayjax._src.averaging.step_then_mix import step_then_mix, varied
from delayjax._src.ground import axes, checks, kinds, transforms
from delayjax._src.ground.compression import Compressor, compressed
from delayjax._src.history import delays, ring, wrapped


class Fragment(NamedTuple):
    """The state of a fragment that all workers share."""

    center: Any  # x, of this fragment
    server_state: Any  # state of the server's optimizer


class Outer(NamedTuple):
    """Memory of `outer`."""

    fragments: tuple[Any, ...]  # a `Fragment` each; with `history` a ring with one item
    flight: Any  # `slices.Flight`, the fragment under way; () at delay 0
    error: Any  # e^i, what compression has left out so far; () without `compress`


@kinds.checked
def outer(
    inner: transforms.Transformation,
    server: transforms.Transformation,
    *,
    period: kinds.Count,
    delay: kinds.NonNegativeInt = 0,
    merge: Merge = overwriting,
    fragments: Fragments = 1,
    compress: Compressor | None = None,
    history: ring.Storage | None = None,
    axis_name: axes.AxisName | None = "workers",
) -> optax.GradientTransformationExtraArgs:
    """DiLoCo: after H local steps, `server` takes a step with the models' mean change.

        x^i <- x^i + U(g^i)                          at every step
        dl   = x - (1/P) sum_j x^j_(k)               started where `period` divides k
        x   <- x + server(dl),
        x^i <- merge(x^i, x^i_(k), x)                after step k + d

    with x^i_(k) the model after k steps. `server` takes dl, the pseudo-gradient, as its
    gradient. The F fragments of a model are exchanged in turn.
    One exchange starts every H / F steps, and each fragment has a `server` of its own.

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
            F divides it. May be traced: the model is NaN if it breaks this rule.
        delay: d, the local steps during which an exchange is in flight; fewer than H /
            F. Static. With d > 0 a fragment is sent in d slices.
        merge: how the new x and the local steps since the start make the worker's
            model: `overwriting` loses d local steps a round, `corrected` none,
            `blended(share)` keeps a share of the worker's own model. At delay 0
            `corrected` is `overwriting`, and `blended` still keeps its share.
        fragments: F, to cut the leaves in their order into parts of about one size; or
            the number 0, ..., F - 1 of each leaf's fragment: a prefix tree, or a
            function of a leaf's path, as "layers/kernel", and the leaf. A leaf that
            stacks L layers may have an array of L numbers, of shape [L] along its first
            axis, [1, L] along its second; do not shard it along that axis.
        compress: (tree, step) -> (message, restore), as `exchange.random_blocks(key,
            fraction)` or `exchange.quantized(bits)`: only the message of dl + e is
            sent, and what it leaves out is kept in e for the next exchange. By default
            all is sent. With a delay it is called twice, at the start and at the
            arrival, with the step of the arrival.
        history: where x and the server's state are kept between exchanges, as
            `ring.on_host()`. By default they stay on the device.
        axis_name: the workers' axis, or several; None for one worker without an axis.

    Returns:
        A transformation whose state holds x and the server's state once, and `inner`,
        and with `compress` one model, for each worker. With a delay it also holds the
        largest fragment twice: each worker's model at the start, and the mean, once.
        With `compress` it is the mean of messages, and each worker holds its message.
        Evaluate x, the `center` of the state; at delay 0 all models are x after an
        exchange, unless `blended` keeps a share of each. A worker adds x - x^i to its
        x^i, so in bfloat16 its model differs from x by a rounding or two of x^i.

        At delay 0 there is one all-reduce of a fragment every H / F steps, in a branch.
        With d > 0 each step all-reduces one slice, 1/d of the largest fragment, outside
        of any branch. It needs nothing of that step, so a compiler with the options of
        `exchange.overlap_options` hides it. The traffic of all steps is the same, also
        while no exchange is in flight: a fragment takes (H / F) / d times its bytes,
        the fewest with d = H / F - 1. Each sum takes the latency of a link, and workers
        wait for one another at every step: `Cluster.exchange_cost` computes the cost. A
        slice is padded to blocks of 1,024 numbers. If M devices share a worker's model,
        each sends one part in M of a slice.

    Raises:
        ValueError: if `delay` or F does not fit `period`; in `init`, if `fragments`
            does not number each leaf; in `update`, if the state has another F or d. The
            check compares shapes only. It cannot see that leaves of equal shapes have
            changed their fragment.
        TypeError: in `update`, if the server needs an extra argument, such as the loss.

    Example:
        >>> tx = outer(optax.sgd(1.0), optax.sgd(0.5), period=2)
        >>> def two_steps(grad):
        ...     first, state = tx.update(grad, tx.init(grad * 0), grad * 0)
        ...     return first, first + tx.update(grad, state, first)[0]
        >>> jax.vmap(two_steps, axis_name="workers")(jnp.asarray([1.0, 3.0]))
        (Array([-1., -3.], dtype=float32), Array([-2., -2.], dtype=float32))

    References:
        Douillard et al., DiLoCo, 2023, arXiv:2311.08105, algorithm 1, and Streaming
        DiLoCo, 2025, arXiv:2501.18512, as in the code pytorch/torchft; Thérien et al.,
        MuLoCo, 2025, arXiv:2505.23725, as in the same code; Kallusky et al., SNOO,
        2025, arXiv:2510.15830, and Lookahead as commonly reported. The slices are ours.
    """
    server = transforms.as_transformation("server", server)
    is_number = isinstance(fragments, (int, np.generic, np.ndarray, jax.Array))
    if is_number and np.ndim(fragments) == 0:  # F; an array is for a model of one leaf
        fragments = checks.check_bound("fragments", fragments, at_least=1)
        _check_times(period, delay, fragments)

    exchange = _Exchange(server, delay, leaf_merge(merge), compress, history, axis_name)

    def begin(params):
        split = Split(fragments, params)
        _check_times(period, delay, split.count)
        parts = [split.cut(params, number) for number in range(split.count)]
        error = () if compress is None else optax.tree.zeros_like(params)
        return Outer(
            fragments=tuple(exchange.keep(exchange.fresh(part)) for part in parts),
            flight=exchange.no_flight(parts, params) if delay else (),
            error=varied(error, axis_name),
        )

    def mix(step, memory, before, model):
        split = Split(fragments, model)
        exchange.check(split, memory, model)
        apart = checks.known(period) // split.count
        flight, error, after = memory.flight, varied(memory.error, axis_name), []
        if delay and jax.tree.leaves(model):
            # between an arrival and the next start, slices are sent, but not read
            is_read = step % apart < delay
            flight, model = slices.send(flight, step % delay, is_read, model, axis_name)
        for number, kept in enumerate(memory.fragments):
            first = (number + 1) * apart  # its first exchange starts after this step
            kept, error, model = periods.choose(
                periods.due(step, period, first + delay),
                functools.partial(exchange.arrive, step, split, number, flight),
                lambda *same: same,
                *(kept, error, model),
            )
            after.append(kept)
            if delay:
                at = step, split, number, kept, error, model
                flight = periods.choose(
                    periods.due(step, period, first),
                    functools.partial(exchange.start, *at),
                    lambda same: same,
                    flight,
                )
        if not checks.is_concrete(period):  # only now can it be checked
            is_sound = (checks.known(period) % split.count == 0) & (apart > delay)
            model = delays.poisoned(model, jnp.where(is_sound, 0.0, jnp.nan))
        return model, Outer(tuple(after), flight, error)

    return step_then_mix("averaging.outer", inner, mix, axis_name, begin, alone=True)


class _Exchange(NamedTuple):
    """The exchange of one fragment, by the arguments of `outer`."""

    server: optax.GradientTransformationExtraArgs
    delay: int
    merge: Merge
    compress: Compressor | None
    storage: ring.Storage | None
    axis_name: axes.AxisName | None

    def start(self, step, split, number, kept, error, model, flight):
        """The flight of the fragment, of which no slice is sent yet."""
        local = split.cut(model, number)
        center = self._read(kept, local).center
        flight = flight._replace(begun=slices.packed(local, flight.begun))
        if self.compress is None:
            return flight._replace(inbox=slices.packed(center, flight.inbox))
        part_error = split.cut(error, number)
        message, *_ = self._message(center, local, part_error, step + self.delay)
        return flight._replace(outbox=slices.packed(message, flight.outbox))

    def arrive(self, step, split, number, flight, kept, error, model):
        """The outer step: the fragment as it is kept, the error and the model after."""
        local = split.cut(model, number)
        center, server_state = self._read(kept, local)
        begun = slices.unpacked(flight.begun, local) if self.delay else local
        part_error = split.cut(error, number)
        message, restore, part_error = self._message(center, begun, part_error, step)
        if self.delay:
            mean = slices.unpacked(flight.inbox, message)
        else:
            mean = means.mean(message, self.axis_name)
        push = optax.tree.cast_like(restore(mean), center)
        try:
            moves, server_state = self.server.update(push, server_state, center)
        except TypeError as error:
            raise TypeError(
                "`server` must take a step from gradients and parameters alone, as"
                f" optax.sgd and optax.adam do: {error}"
            ) from error
        center = optax.apply_updates(center, moves)
        local = jax.tree.map(self.merge, local, begun, center)
        error = split.replaced(error, number, part_error)
        model = split.replaced(model, number, local)
        kept = self.keep(Fragment(center, server_state), kept)
        return kept, *varied((error, model), self.axis_name)

    def _message(self, center, begun, error, step):
        """A worker's message, the function from mean to push, and the next error."""
        push = jax.tree.map(jnp.subtract, center, begun)
        if self.compress is None:
            return push, lambda mean: mean, error
        return compressed(self.compress, push, error, step)

    def fresh(self, part):
        """A fragment before its first exchange."""
        state = wrapped.init("server", self.server, part, wrapper="outer")
        return Fragment(part, state)

    def keep(self, fragment, kept=None):
        """A fragment in its storage, in place of the fragment before."""
        if self.storage is None:
            return fragment
        kept = self.storage.init(fragment, 1) if kept is None else kept
        return self.storage.push(kept, fragment)

    def _read(self, kept, part):
        if self.storage is None:
            return kept
        return self.storage.read(kept, 0, jax.eval_shape(self.fresh, part))

    def no_flight(self, parts, params):
        """Boxes for the largest fragment, before the first start."""

        def message(part):
            return self._message(part, part, part, jnp.zeros((), jnp.int32))[0]

        messages = [jax.eval_shape(message, part) for part in parts]
        begun, inbox = (slices.empty(t, params, self.delay) for t in (parts, messages))
        local = begun, {} if self.compress is None else inbox
        begun, outbox = varied(local, self.axis_name)
        return slices.Flight(begun, outbox, axes.vary_as(params, inbox))

    def check(self, split, memory, model):
        """Checks that a state fits the arguments."""
        checks.check_held("fragments", split.count, len(memory.fragments))
        if self.storage is None:  # else the history checks what it holds
            split.check([kept.center for kept in memory.fragments], model)
        begun = memory.flight.begun if memory.flight else {}
        if jax.tree.leaves(model):
            checks.check_held("delay", self.delay, slices.number_of(begun))
        errors = memory.error, (() if self.compress is None else model)
        checks.check_held("compress", self.compress, *map(jax.tree.structure, errors))


def _check_times(period: Any, delay: int, count: int) -> None:
    """Checks that exchanges of `count` fragments follow one another."""
    if isinstance(period, int):
        checks.check_exchanges(period, count, delay)
