"""Training in every execution follows a NumPy loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.exchange import oracle
from tests.exchange.driving import parted
from tests.support.cases import shortened
from tests.workers.driving import (
    EXECUTIONS,
    FEW,
    INPUTS,
    SHORT,
    TABLES,
    assert_close,
    logistic_grad,
    logistic_task,
    perceptron_task,
    trained,
    twin,
)

MEMBERS_OF_TABLES = [(k, name) for k, (_, _, table) in TABLES.items() for name in table]
SHORT_MEMBERS = [(level, name) for level, names in SHORT.items() for name in names]
compositions = pytest.mark.parametrize(("level", "name"), MEMBERS_OF_TABLES)


def in_float64(level, name, execution):
    """The split and the metrics of one composition, in float64."""
    few = SHORT[level]
    others = tuple(other for other in TABLES[level][2] if other not in few)
    with jax.enable_x64(True):
        split, metrics = trained(
            logistic_task, level, few if name in few else others, execution
        )
    return parted(split)[name] if split else None, metrics[name]


@pytest.mark.parametrize(
    ("level", "name", "execution"),
    shortened(
        [(*m, e) for e in ("simulate", "run", "jit") for m in MEMBERS_OF_TABLES],
        *((*m, "run") for m in MEMBERS_OF_TABLES),
        *((*m, e) for e in ("simulate", "jit") for m in SHORT_MEMBERS),
    ),
)
def test_float64_training_follows_a_numpy_loop(level, name, execution):
    params = in_float64(level, name, execution)[1]["params"]
    assert params.dtype == np.float64
    expected = twin(logistic_task, level, name)
    np.testing.assert_allclose(params, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FEW)
def test_pmap_takes_the_same_step(name):
    params = in_float64("workers", name, "pmap")[1]["params"]
    expected = twin(logistic_task, "workers", name)
    np.testing.assert_allclose(params, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("execution", ["run", "jit"])
@pytest.mark.parametrize(
    ("level", "name"), shortened(MEMBERS_OF_TABLES, *SHORT_MEMBERS)
)
def test_every_execution_holds_the_same_split(level, name, execution):
    split, reference = (in_float64(level, name, e)[0] for e in (execution, "simulate"))
    assert split.axes == reference.axes
    assert_close(split.state, reference.state, rtol=0, atol=1e-10)


@pytest.mark.parametrize("execution", shortened(EXECUTIONS, "run"))
@pytest.mark.parametrize("name", FEW)
def test_float32_steps_of_a_perceptron_round_off(name, execution):
    """Each step equals the loop's from the same parameters, up to rounding of float32.

    Gradients and steps are near 1 and `RATE`, and Adam divides by at least 0.01.
    """
    params = trained(perceptron_task, "workers", FEW, execution)[1][name]["params"]
    assert params.dtype == np.float32
    expected = twin(perceptron_task, "workers", name, follow=params)
    np.testing.assert_allclose(params, expected, rtol=0, atol=2e-6)


@compositions
def test_local_leaves_are_those_that_differ_and_no_others(level, name):
    """The parameters, the optimizer behind the mean and all clocks exist once."""
    split = in_float64(level, name, "run")[0]
    structure = jax.tree.structure(split.state)
    axes = jax.tree.unflatten(structure, [" ".join(a) for a in split.axes])
    held = {
        jax.tree_util.keystr(path): a for path, a in jax.tree.leaves_with_path(axes)
    }
    prefixes = TABLES[level][2][name].local
    assert {p for p in prefixes if not any(k.startswith(p) for k in held)} == set()
    owners = TABLES[level][0][0]  # the axis of the workers, or of the groups
    assert held == {k: owners if k.startswith(prefixes) else "" for k in held}


START = {"w": jnp.ones(INPUTS), "b": jnp.zeros(())}
BATCHES = jnp.asarray(logistic_task()[3][:6], jnp.float32)


def alone(optimizer, data):
    """The result of one worker with its data [T, ...], by the loop."""
    x = np.concatenate([[0.0], np.ones(INPUTS)])  # START as a vector
    data = np.asarray(data, np.float64)[:, None]
    bias, *weights = oracle.train(logistic_grad, x, data, optimizer)[-1]
    return {"w": np.asarray(weights), "b": np.asarray(bias)}
