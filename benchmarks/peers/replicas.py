"""Compares our round of replicas with DrJAX's round."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from benchmarks.peers.common import RATE, difference
from benchmarks.side_by_side import Contender, medians
from benchmarks.tables import NotMeasuredError, Row
from experiments import tasks

COLUMNS = {
    "local steps": "{}",
    "DrJAX ms": "{:.3f}",
    "ours, ms": "{:.3f}",
    "/ ours": "{:.2f}",
    "difference": "{:.1g}",
}


class Replicas(NamedTuple):
    """A model, its loss, and a batch for each replica and step, [steps, replicas]."""

    params: Any
    loss: Callable[[Any, Any], jax.Array]
    batches: Any


def digits(replicas: int, steps: int) -> Replicas:
    """The runner's network on scikit-learn's digits, with 8 examples per gradient."""
    task = tasks.digits_mlp(batch_size=8)
    drawn = task.batches(0, 0, steps * replicas)
    batches = jax.tree.map(
        lambda leaf: jnp.asarray(leaf).reshape(steps, replicas, *leaf.shape[1:]), drawn
    )
    return Replicas(task.init(jax.random.key(0)), task.loss, batches)


def in_drjax(problem: Replicas, replicas: int, drjax: Any) -> Contender:
    """A contender of a round in DrJAX: broadcast, local steps, mean."""

    @drjax.program(placements={"replicas": replicas})
    def round_(params, batches):
        def train(params, batches):
            def step(params, batch):
                grads = jax.grad(problem.loss)(params, batch)
                return optax.tree.add_scale(params, -RATE, grads), None

            return jax.lax.scan(step, params, batches)[0]

        trained = drjax.map_fn(train, (drjax.broadcast(params), batches))
        return drjax.reduce_mean(trained)

    swapped = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), problem.batches)
    return Contender(round_, problem.params, swapped)


def in_ours(problem: Replicas, replicas: int, steps: int) -> Contender:
    """A contender of the same steps with `local_sgd`, simulated on one device."""
    tx = dj.averaging.local_sgd(optax.sgd(RATE), period=steps)

    def of_one(state, batch):
        params, opt_state = state
        grads = jax.grad(problem.loss)(dj.workers.vary(params), batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    workers = dj.workers.simulate(of_one, replicas)
    first = jax.tree.map(lambda leaf: leaf[0], problem.batches)
    state = workers.init((problem.params, tx.init(problem.params)), first, shared=False)

    def round_(state, batches):
        return jax.lax.scan(lambda s, b: (workers.step(s, b)[0], None), state, batches)[
            0
        ]

    return Contender(round_, state, problem.batches)


def rows(rounds: int) -> Iterator[Row]:
    """Rows of 8 replicas that average after some local steps."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # DrJAX warns without a mesh
    try:
        import drjax  # no extra of delayjax installs it
    except ImportError as error:
        raise NotMeasuredError("no DrJAX: pip install drjax") from error
    for steps in (1, 8, 32):
        problem = digits(8, steps)
        made = {
            "theirs": in_drjax(problem, 8, drjax),
            "ours": in_ours(problem, 8, steps),
        }
        t = medians(made, rounds=rounds)
        ours, _ = made["ours"].state.one()
        yield {
            "local steps": steps,
            "DrJAX ms": 1e3 * t["theirs"],
            "ours, ms": 1e3 * t["ours"],
            "/ ours": t["theirs"] / t["ours"],
            "difference": difference(made["theirs"].state, ours),
        }
