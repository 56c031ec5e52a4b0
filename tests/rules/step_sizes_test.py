"""All step-size rules on workers, simulated and on devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import delayjax as dj
from tests.rules.drawn import DISTANT
from tests.support.cases import shortened

# with workers

WORKERS, AGES = 4, [0, 3, 1, 2]


WITH_WORKERS = {
    "adaptive_1": dj.step_sizes.adaptive_1(0.3, 3),
    "adaptive_2": dj.step_sizes.adaptive_2(0.3, 3),
    "adadelay": dj.step_sizes.adadelay(2.0, 1.0),
    "adadelay, per coordinate": dj.step_sizes.adadelay(2.0, 1.0, per_coordinate=True),
    "distance_capped": dj.step_sizes.distance_capped(0.2, 0.02),
    "dasa": optax.chain(dj.step_sizes.dasa(0.2, 1.0), optax.scale(-0.2)),
    "dasgd": dj.step_sizes.dasgd(0.2),
    "delay_adaptive": optax.chain(
        optax.scale(-0.2),
        dj.scale_by_staleness(dj.modulation.delay_adaptive(0.2, 0, bound=0.2)),
    ),
}


PLACES = [
    *((name, True) for name in WITH_WORKERS),
    # behind the mean there are no parameters at which the gradient was taken
    *((name, False) for name in WITH_WORKERS if name not in DISTANT),
]


@pytest.mark.parametrize(
    ("name", "is_before"),
    shortened(
        PLACES,
        *((name, True) for name in WITH_WORKERS),
        *((name, False) for name in ("adadelay, per coordinate", "dasgd")),
    ),
)
def test_simulated_workers_and_devices_agree_with_a_loop(name, is_before):
    """Each worker has the rule before the mean, or the server has it behind."""
    rule = WITH_WORKERS[name]
    tx, ages = dj.exchange.mean(rule), [2] * WORKERS
    if is_before:
        tx, ages = optax.chain(rule, dj.exchange.mean(optax.identity())), AGES
    delay = dj.delays.per_worker(ages) if is_before else 2
    tx = dj.delayed(tx, delay, max_delay=3, keep_params=True)

    def step(state, target):
        x, opt_state = state
        grads = dj.workers.vary(x) - target
        updates, opt_state = tx.update(grads, opt_state, x)
        return (optax.apply_updates(x, updates), opt_state), ()

    targets = jax.random.normal(jax.random.key(0), (12, WORKERS, 3))
    start = jnp.array([2.0, -1.0, 0.5])
    mesh = jax.make_mesh((WORKERS,), ("workers",), axis_types=(AxisType.Auto,))
    ends = []
    for workers in (
        dj.workers.simulate(step, WORKERS),
        dj.workers.run(step, mesh),
    ):
        held = workers.init((start, tx.init(start)), targets[0])
        held, _ = jax.jit(lambda h, ts, w=workers: jax.lax.scan(w.step, h, ts))(
            held, targets
        )
        ends.append(np.asarray(held.state[0]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5, atol=1e-6)
    by_hand = loop(rule, ages, start, targets, is_before)
    np.testing.assert_allclose(ends[0], by_hand, rtol=1e-5, atol=1e-6)


def loop(rule, ages, start, targets, is_before):
    """The same with lists: a state a worker before the mean, one state behind it."""
    xs, states = [start], [rule.init(start) for _ in range(WORKERS)]
    for t in range(len(targets)):
        seen = [t - min(age, t) for age in ages]
        grads = [xs[s] - targets[s][w] for w, s in enumerate(seen)]
        if not is_before:
            grads = [sum(grads) / WORKERS]
        steps = []
        for w, g in enumerate(grads):
            age = jnp.int32(t - seen[w])
            u, states[w] = rule.update(
                g, states[w], xs[t], staleness=age, stale_params=xs[seen[w]]
            )
            steps.append(u)
        xs.append(xs[t] + sum(steps) / len(steps))
    return xs[-1]
