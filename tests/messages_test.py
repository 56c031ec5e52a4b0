"""Calls that are easily got wrong: one line names the argument and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import cluster
from delayjax.cluster import protocols

TWO = cluster.Cluster(2, cluster.exponential(1.0))
TRACE = cluster.simulate(TWO, protocols.k_async(1), 9, seed=0)
SGD, POLYNOMIAL = optax.sgd(0.1), dj.modulation.polynomial
PARAMS = {"w": jnp.ones(3)}
LATE = dj.delayed(SGD, 2)
KEEPING = dj.delayed(SGD, 2, keep_params=True)


def grad_fn(params, batch, key):
    return params["w"].sum(), params


def gradients_alone(params, batch, key):
    return params


def replayed(trace=TRACE, grad_fn=grad_fn, key=None, updates=9):
    training = dj.replay(trace, grad_fn, SGD)
    state = training.init(PARAMS, jax.random.key(0) if key is None else key)
    return training.run(state, np.ones((updates, 1)))


def one_update(tx, grads=PARAMS, made_by=None):
    return tx.update(grads, (made_by or tx).init(PARAMS), PARAMS)


def never_done(rng, worker):
    yield np.full(8, np.inf)


def simulated(protocol, workers=TWO):
    return cluster.simulate(workers, protocol, 9, seed=0)


WRONG = {
    "a cluster": (lambda: replayed(TWO), r"`trace` .* got Cluster\(.*cluster.simulate"),
    "a path": (lambda: replayed("x.csv"), r"`trace` .* got 'x.csv'.*load_trace"),
    "gradients alone": (
        lambda: replayed(grad_fn=gradients_alone),
        r"`grad_fn` must return \(metrics, gradients\), got {.*jax.value_and_grad",
    ),
    "a number for a key": (
        lambda: replayed(key=0),
        r"`key` must be a key, got 0: write jax.random.key\(0\)",
    ),
    "too many updates": (
        lambda: replayed(updates=30),
        r"`batches` must fit 9 updates, got 30",
    ),
    "a storage that is not called": (
        lambda: dj.delayed(SGD, 2, history=dj.ring.on_host),
        r"`history` must be a Storage, got <function on_host",
    ),
    "a number for a law": (
        lambda: dj.scale_by_staleness(0.5),
        r"`law` must be a function, got 0.5",
    ),
    "a name for a law": (
        lambda: dj.scale_by_staleness("inverse"),
        r"`law` must be a function, got 'inverse'",
    ),
    "a law that is not called": (
        lambda: one_update(dj.delayed(dj.scale_by_staleness(POLYNOMIAL), 1)),
        r"`law\(staleness\)` must be a real number, got polynomial\(",
    ),
    "a protocol that is not called": (
        lambda: simulated(protocols.hardsync),
        r"hardsync\(\) takes 0 positional arguments but 1 was given",
    ),
    "a name for a protocol": (
        lambda: simulated("ssp"),
        r"`protocol` must be a function, got 'ssp'",
    ),
    "a number for a service": (
        lambda: cluster.Cluster(2, 1.0),
        r"`service` must be .* got 1.0: .*cluster.constant\(1.0\)",
    ),
    "a number among services": (
        lambda: cluster.Cluster(2, [cluster.constant(1.0), 1.0]),
        r"`service` must be .* got 1.0: .*cluster.constant\(1.0\)",
    ),
    "other gradients": (
        lambda: one_update(LATE, {"v": jnp.ones(3)}),
        r"`updates` must have the structure of the parameters, .*'w'.*, got .*'v'",
    ),
    "a state without parameters": (
        lambda: one_update(KEEPING, made_by=LATE),
        r"`keep_params` is True, but the state has False: .*`init`",
    ),
    "a state with parameters": (
        lambda: one_update(LATE, made_by=KEEPING),
        r"`keep_params` is False, but the state has True: .*`init`",
    ),
    "ringmaster by its name": (
        lambda: simulated(protocols.ringmaster(3), cluster.Cluster(2, never_done)),
        r"`ringmaster\(3, stop=False\)` waits forever for workers 0, 1",
    ),
    "rennala by its name": (
        lambda: simulated(protocols.rennala(3), cluster.Cluster(2, never_done)),
        r"`rennala\(3\)` waits forever for workers 0, 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_names_its_argument_and_the_remedy(name):
    call, message = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
