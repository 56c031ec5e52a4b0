"""What islands send, compiled for two slices of TPUs and for two hosts of GPUs.

`python -m pytest -s -m 'long or not long' tests/experiments/pods/islands_test.py`
prints the numbers of docs/islands.md.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax import averaging
from experiments.pods import chips, compile_pod
from tests.support.extras import needs_cuda, needs_libtpu

NAMES, ISLANDS, MEMBERS = ("groups", "members"), 2, 4
WIDTH, LAYERS, ROWS = 2048, 4, 4096
PERIOD, DELAY = 5, 4
MODEL = 2 * LAYERS * WIDTH**2  # bytes, in bfloat16
ADAM = optax.adam(1e-3)
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def diloco(delay):
    inner = dj.exchange.mean(ADAM, axis_name="members")
    arguments = dict(period=PERIOD, delay=delay, axis_name="groups")
    return averaging.outer(inner, NESTEROV, **arguments)


METHODS = {  # with `shared`: islands may have different models
    "late": (diloco(DELAY), False),
    "synchronous": (diloco(0), False),
    "late_between_groups": (dj.exchange.late_between_groups(ADAM, MEMBERS), None),
}


def loss(params, x):
    for w in params:
        x = jax.nn.relu(x @ w)
    return jnp.mean(x.astype(jnp.float32) ** 2)


@functools.cache
def report(topology, method):
    """The report of a donated step of a perceptron, in bfloat16."""
    place = chips.topology(topology)
    devices = place.devices()
    devices = sorted(devices, key=lambda device: getattr(device, "slice_index", 0))
    shape = ISLANDS, MEMBERS
    mesh = Mesh(np.reshape(devices, shape), NAMES, axis_types=(AxisType.Auto,) * 2)
    tx, shared = METHODS[method]

    def step(state, x):
        params, opt_state = state
        varied = dj.workers.vary(params, axis_name=NAMES)
        updates, opt_state = tx.update(jax.grad(loss)(varied, x), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    workers = dj.workers.run(step, mesh, axis_name=NAMES)
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16)] * LAYERS
    state = jax.eval_shape(lambda params: (params, tx.init(params)), params)
    batch = jax.ShapeDtypeStruct((*shape, ROWS, WIDTH), jnp.bfloat16)
    held = jax.eval_shape(lambda *both: workers.init(*both, shared), state, batch)
    placed = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        (held, batch),
        (held.shardings(mesh), NamedSharding(mesh, P(*NAMES))),
    )
    options = dj.exchange.overlap_options(devices[0])
    jitted = jax.jit(
        lambda held, batch: workers.step(held, batch)[0],
        donate_argnums=0,
        compiler_options=options,
    )
    return compile_pod.examine(jitted, placed, place, program=method)


def between_islands(topology, method):
    """The sums over the islands, and their bytes in a step, the mean of a round."""
    result = [
        c for c in report(topology, method).collectives if c.group_size == ISLANDS
    ]
    often = {c: c.times / (PERIOD if c.in_branch else 1) for c in result}
    sent, sending, hidden = (
        sum(getattr(c, name) * share for c, share in often.items())
        for name in ("sent_bytes", "sending_seconds", "hidden_seconds")
    )
    print(
        f"{topology} {method}: a device sends {sent:,.0f} bytes a step to the other"
        f" island in {1e3 * sending:.3f} ms, of which {1e3 * hidden:.3f} are hidden"
    )
    return result, sent


TOPOLOGIES = [
    pytest.param("2*v5e:2x2", marks=needs_libtpu),
    pytest.param("h100:1x2x4", marks=needs_cuda),
]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_late_slice_is_hidden_and_in_no_branch(topology):
    """Each member sends a quarter of a quarter of the model between two islands."""
    (one,), sent = between_islands(topology, "late")
    assert sent == one.num_bytes == MODEL / (DELAY * MEMBERS)
    assert one.asynchronous and one.hidden and not one.in_branch
    assert one.between_slices == ("*" in topology)


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_synchronous_islands_send_in_a_branch_and_wait(topology):
    result, sent = between_islands(topology, "synchronous")
    assert sent == MODEL / PERIOD  # each member sends everything
    assert all(c.in_branch for c in result)
    assert sum(c.waiting_seconds for c in result) > 0


@pytest.mark.long
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_late_gradients_are_sent_at_every_step(topology):
    (one,), sent = between_islands(topology, "late_between_groups")
    assert sent == pytest.approx(MODEL / MEMBERS, rel=1e-3)
    assert one.asynchronous and not one.in_branch
