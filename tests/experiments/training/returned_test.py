"""A rule that returns something else than it should is refused where it is traced."""

import itertools

import jax
import jax.numpy as jnp
import optax
import pytest

import delayjax as dj
from experiments import Experiment, Simulation, along, replicas, tasks
from experiments.running.programs import programs
from experiments.training import methods
from experiments.training.returned import checked

CLUSTER = dj.cluster.Cluster(2, dj.cluster.constant(1.0))
SOURCE = Simulation(CLUSTER, dj.cluster.protocols.k_async(1))


def late(make):
    return lambda rate: dj.delayed(make(rate), 1, max_delay=1)


KINDS = {
    "alone": lambda make: make,
    "late": late,
    "of a server": lambda make: along(SOURCE, make),
    "of each gradient": lambda make: along(SOURCE, optax.sgd(0.1), each=make),
    "of a client": lambda make: along(SOURCE, optax.sgd(0.1), client=make),
    "of a replica": lambda make: replicas(methods.local_sgd(2), CLUSTER, make),
}

# the updates, or the whole result, of a rule from the gradients and the state
UPDATES = {
    r"updates .*, got float32\[\] for float32\[2\] at the root": lambda g: g.mean(),
    r"updates .*, got float32\[1\] for float32\[2\] at": lambda g: g[:1],
    r"updates .*, got float32\[2, 2\] for float32\[2\] at": lambda g: jnp.outer(g, g),
    r"updates .*, got complex64\[2\] for float32\[2\] at": lambda g: g * 1j,
    r"updates .*, got nothing for float32\[2\] at the root": lambda g: {"a": g},
}
RESULTS = {
    r"the pair \(updates, state\), got \w*Tracer\.": lambda g, s: g,
    r"the pair \(updates, state\), got 3 values\.": lambda g, s: (g, s, s),
    r"the pair \(updates, state\), got NoneType\.": lambda g, s: None,
    r"a state like .*, got float32\[2\] for nothing at \[0\]\.": lambda g, s: (
        g,
        (*s, g),
    ),
    r"a state like .*, got PyTreeDef\(\[\]\) for PyTreeDef\(\(\)\)\.": lambda g, s: (
        g,
        [*s],
    ),
}


def of(result):
    """A function of the axis `rate` that makes a rule."""

    def make(rate):
        def update(grads, state, params=None):
            return result(-rate * grads, state)

        return optax.GradientTransformation(lambda params: (), update)

    return make


def made(training):
    """The programs of an experiment, which are traced and not compiled."""
    task = tasks.quadratic((0.5, 2.0), noise=0.1)
    arms = [({"rule": "mine"}, training)]
    grid = {"rate": (0.1, 0.2)}
    return programs(
        Experiment(question="?", task=task, arms=arms, grid=grid, updates=2)
    )


WRONG = {text: lambda g, s, f=f: (f(g), s) for text, f in UPDATES.items()}


FIRST = next(iter(WRONG))


@pytest.mark.parametrize(
    ("kind", "message"),
    [*itertools.product(KINDS, [FIRST]), *itertools.product(["alone"], [*WRONG][1:])],
)
def test_updates_unlike_the_parameters_are_refused_with_the_arm(kind, message):
    asked = rf"The training with rule=mine, rate=0.1 fails: TypeError: .*{message}"
    with pytest.raises(ValueError, match=asked):
        made(KINDS[kind](of(WRONG[message])))


@pytest.mark.parametrize("kind", ["alone", "of a server", "of each gradient"])
def test_a_rule_that_no_function_makes_is_checked_too(kind):
    training = KINDS[kind](of(WRONG[FIRST])(0.1))
    task = tasks.quadratic((0.5, 2.0))
    with pytest.raises(ValueError, match=FIRST):
        programs(Experiment(question="?", task=task, training=training, updates=2))


@pytest.mark.parametrize("message", RESULTS)
def test_anything_but_updates_and_a_like_state_is_refused(message):
    asked = f"rule=mine.*`update` of a rule must return {message}"
    with pytest.raises(ValueError, match=asked):
        made(of(RESULTS[message]))


@pytest.mark.parametrize("result", [lambda g, s: (g, s, s), lambda g, s: None])
def test_a_rule_inside_of_a_wrapper_must_return_a_pair_too(result):
    with pytest.raises(ValueError, match=r"rule=mine.*unpack"):
        made(late(of(result)))


def unpacks(g, s):
    one, two = g, s, s
    return one, two


def refuses_to_unpack(g, s):
    raise ValueError("no table to unpack")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (unpacks, "too many values to unpack"),
        (refuses_to_unpack, "no table to unpack"),
    ],
)
@pytest.mark.parametrize("kind", ["alone", "late"])
def test_an_error_of_a_rule_that_unpacks_is_its_error(kind, result, said):
    with pytest.raises(ValueError, match=rf"rule=mine.*line \d+: {said}"):
        made(KINDS[kind](of(result)))


def test_a_float_of_another_width_is_an_update():
    """Optax adds it in the dtype of the parameters."""
    narrow = of(lambda g, s: (g.astype(jnp.bfloat16), s))
    assert [program.size for program in made(narrow)] == [2]


def test_a_rule_that_is_checked_returns_the_same():
    params = {"a": jnp.ones(3), "b": None, "c": jax.random.key(0)}
    rule = optax.masked(optax.adam(0.1), {"a": True, "b": None, "c": False})
    state = rule.init(params)
    wanted = rule.update(params, state, params)
    returned = checked(rule).update(params, state, params)
    same = jax.tree.map(lambda one, other: bool((one == other).all()), returned, wanted)
    assert all(jax.tree.leaves(same))
