"""Laws, protocols and service times can be sent to another process."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import delayjax as dj
from delayjax import cluster
from delayjax.cluster import protocols
from tests import public_calls
from tests.support.contents import contents

# their argument is a function of a test, which cannot be pickled by name
BY_FUNCTION = {"cluster.by_batch", "cluster.independent"}
MADE = [
    row
    for row in public_calls.ROWS
    if row.use in {public_calls.of_law, public_calls.simulated, public_calls.drawn}
    and row.label not in BY_FUNCTION
]


def made(row):
    return row.function(**{name: value for name, (value, _) in row.arguments.items()})


@pytest.mark.parametrize("row", MADE, ids=lambda row: row.label)
def test_a_copy_from_another_process_does_the_same(row):
    one = made(row)
    copy = pickle.loads(pickle.dumps(one))
    assert contents(row.use(copy)) == contents(row.use(one))
    loaded = pickle.loads(pickle.dumps(copy))
    assert contents(row.use(loaded)) == contents(row.use(one))


@pytest.mark.parametrize(
    "make",
    [
        protocols.hardsync,
        protocols.round_robin,
        protocols.ringleader,
        protocols.ia2sgd,
    ],
)
def test_a_protocol_without_arguments_has_a_copy(make):
    copy = pickle.loads(pickle.dumps(make()))
    assert repr(copy) == repr(make())
    traces = (public_calls.simulated(each) for each in (copy, make()))
    first, second = map(contents, traces)
    assert first == second


SERVICES = {
    "of two kinds": [
        cluster.exponential(1.0).scaled(2.0),
        cluster.from_scipy(stats.gamma(2.0)),
    ],
    "recorded": cluster.Recorded(np.eye(2, 9) + 1.0).service("steps"),
}


@pytest.mark.parametrize("name", SERVICES)
def test_a_cluster_and_its_trace_may_be_sent_to_another_process(name):
    """With a slowdown and a link; `test_a_copy_...` has all other services."""
    slowdown = [cluster.Slowdown(1, 3.0, 2.0, 9.0)]
    link = cluster.Communication(0.1)
    original = cluster.Cluster(2, SERVICES[name], slowdown, link)
    copy = pickle.loads(pickle.dumps(original))
    trace, trace_of_copy = (
        cluster.simulate(one, protocols.ssp(3), 30, seed=0) for one in (original, copy)
    )
    np.testing.assert_array_equal(trace.arrived, trace_of_copy.arrived)
    assert pickle.loads(pickle.dumps(trace)).num_updates == 30


def test_each_protocol_and_law_is_copied():
    labels = {row.label for row in MADE}
    kinds = {"protocols": protocols, "modulation": public_calls.modulation}
    public = {
        f"{kind}.{name}"
        for kind, module in kinds.items()
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type)
    }
    without = "hardsync", "round_robin", "ringleader", "ia2sgd"
    assert public - labels <= {f"protocols.{name}" for name in without} | {
        "modulation.inverse"
    }


NARROW = dj.ring.cast(jnp.bfloat16)
STORAGES = {
    "cast": NARROW,
    "on the host": dj.ring.on_host(),
    "cast, on the host": dj.ring.cast(jnp.bfloat16, storage=dj.ring.on_host()),
    "sharded": dj.ring.sharded("workers", num_workers=1),
}


@pytest.mark.parametrize("name", STORAGES)
def test_a_copy_of_a_storage_keeps_the_same_items(name):
    storage = STORAGES[name]
    copy = pickle.loads(pickle.dumps(storage))
    assert [*copy._fields] == [*storage._fields] and copy.dtype == storage.dtype
    item = {"w": jnp.linspace(0.0, 1.0, 12).reshape(3, 4)}

    def kept(storage):
        ring = storage.push(storage.init(item, 2), item)
        return storage.read(storage.push(ring, optax.tree.scale(2.0, item)), 1, item)

    if name == "sharded":  # of one worker
        read = [
            jax.vmap(lambda _, s=s: kept(s), axis_name="workers")(jnp.zeros(1))
            for s in (storage, copy)
        ]
    else:
        read = list(map(kept, (storage, copy)))
    np.testing.assert_array_equal(read[0]["w"], read[1]["w"])


KEY = jax.random.PRNGKey(7)  # jax.random.poisson refuses a copy of a typed key
DELAYS = {
    "uniform": dj.delays.uniform(KEY, 1, 9),
    "geometric": dj.delays.geometric(KEY, 4.0),
    "poisson": dj.delays.poisson(KEY, 4.0),
    "from_trace": dj.delays.from_trace([0, 3, 1]),
    "per_worker": dj.delays.per_worker([[0, 3], [5, 2]]),
}


@pytest.mark.parametrize("name", DELAYS)
def test_a_copy_of_a_delay_is_as_late(name):
    copy = pickle.loads(pickle.dumps(DELAYS[name]))

    def over_steps(delay):
        of_worker = jax.vmap(
            lambda step, _: delay(step), (None, 0), axis_name="workers"
        )
        return jax.vmap(of_worker, (0, None))(jnp.arange(20), jnp.zeros(2))

    np.testing.assert_array_equal(over_steps(DELAYS[name]), over_steps(copy))
