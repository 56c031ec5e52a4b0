"""What exchanges refuse beside values that are wrong alone, which `fuzz_test` draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.exchange.contract_test import SGD, TABLE
from tests.exchange.driving import WORKERS, as_workers, drive

ONES = {"w": jnp.ones((2, 3)), "b": jnp.ones(())}
# with one axis, over which gradients are exchanged in the step itself
of_one_axis = pytest.mark.parametrize(
    "name", ["a2sgd", "error_feedback", "partial_mean"]
)


def stepped(tx, dtype="float32", **extras):
    def step(grad):
        return tx.update(grad, tx.init(jnp.ones(grad.shape)), **extras)[0]

    grads = jnp.ones((WORKERS, 3), dtype)
    return jax.eval_shape(jax.vmap(step, axis_name="workers"), grads)


@of_one_axis
def test_without_the_axis_the_remedy_is_named(name):
    tx = TABLE[name](SGD)
    with pytest.raises(NameError, match=r"workers\.simulate"):
        tx.update(jnp.ones(()), tx.init(jnp.ones(())))


@of_one_axis
def test_gradients_summed_already_are_refused(name):
    tx = TABLE[name](SGD)

    def step(x, batch):
        grad = jax.grad(lambda x: (x * batch).sum())(x)
        return tx.update(grad, tx.init(x))[0], {}

    with pytest.raises(ValueError, match=rf"exchange\.{name}.*summed already"):
        as_workers("run", step).init(jnp.ones(()), jnp.ones(WORKERS))


@of_one_axis
def test_integer_gradients_are_refused(name):
    with pytest.raises(TypeError, match="must be floating-point gradients, got int"):
        stepped(TABLE[name](SGD), "int32")


def late_reduce():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    return dj.exchange.late_reduce(SGD, mesh)


def late(dtype="float32", **extras):
    """A step of gradients of four shards."""
    grads = jax.tree.map(lambda x: jnp.stack([x] * 4).astype(dtype), ONES)
    tx = late_reduce()
    return jax.eval_shape(lambda: tx.update(grads, tx.init(ONES), **extras))


def at_error(errors):
    tx = dj.exchange.error_feedback(SGD, lambda tree, step: (tree, lambda m: m))
    return dj.exchange.detached(jnp.ones(2), (tx.init(jnp.ones(2)),) * errors, 0.5)


PARTIAL = dj.exchange.partial_mean(SGD, lambda step: True)
SEARCH = optax.scale_by_backtracking_linesearch(5)
REFUSED = [
    (
        lambda: stepped(TABLE["a2sgd"](SGD), "complex64"),
        "`updates` of a2sgd must be real gradients, got complex64",
    ),
    (lambda: stepped(PARTIAL, staleness={"a": 1}), "needs one `staleness` for all"),
    (lambda: stepped(PARTIAL, staleness=-1), "must be a non-negative"),
    (lambda: dj.exchange.solo(np.zeros((0, 3))), r"must be numbers .*got \(0, 3\)"),
    (lambda: dj.exchange.solo([[1.0, np.inf]]), "`seconds` must be finite"),
    (lambda: dj.exchange.solo([[True, False]]), "must be numbers .* of bool"),
    (
        lambda: stepped(dj.exchange.partial_mean(SGD, dj.exchange.solo([[1.0] * 5]))),
        "`seconds` must have a column for each of 4 workers, got 5",
    ),
    (lambda: at_error(2), "must hold one state of error_feedback, got 2"),
    (
        # it would compare a gradient of the step before with the loss of this one
        lambda: dj.exchange.overlapped_mean(SEARCH).init(jnp.ones(3)),
        r"`inner` must not hold optax's.*search",
    ),
    (
        lambda: dj.exchange.late_between_groups(SGD, 2, axis_name=("a", "b", "c")),
        "`axis_name` must name two axes",
    ),
    (lambda: late("int32"), "`updates` must be floating-point gradients"),
    (
        lambda: late(staleness={"w": 1, "b": 1}),
        "needs one `staleness` for all leaves",
    ),
    *(
        (
            lambda execution=execution: drive(
                execution, late_reduce(), {"w": np.ones((2, 4, 3))}, {"w": jnp.zeros(3)}
            ),
            r"f32\[3\]\{V:workers\} at \['w'\]: take jax.vmap",
        )
        for execution in ("simulate", "run")
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_cannot_be_exchanged_is_refused(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
