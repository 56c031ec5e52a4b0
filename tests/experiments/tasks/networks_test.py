"""Models with statistics and dropout, of Linen and of nnx."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments import tasks
from tests.experiments.tasks.small import STATEFUL
from tests.experiments.tasks.tasks_test import first


@pytest.mark.parametrize("name", STATEFUL)
def test_batch_norm_s_statistics_are_those_of_the_batches(make, name):
    task = make(name, batch_size=64)
    params, state = task.init(jax.random.key(0))
    batch = first(task.batches(0, 0, 1))
    for _ in range(200):  # at fixed parameters: the mean over all of the same batch
        _, state = task.loss(params, batch, state=state, key=jax.random.key(1))
    hidden = params["Dense_0"] if name == "linen" else params["hidden"]
    inner = batch["image"].reshape(64, -1) @ hidden["kernel"] + hidden["bias"][None]
    expected = [inner.mean(0), inner.var(0)]
    for value, wanted in zip(jax.tree.leaves(state), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", STATEFUL)
def test_dropout_is_drawn_from_the_key_in_training_alone(make, name):
    task = make(name)
    params, state = task.init(jax.random.key(0))
    batch = first(task.batches(0, 0, 1))
    one, copy, other = (
        task.loss(params, batch, state=state, key=jax.random.key(key))[0]
        for key in (1, 1, 2)
    )
    assert one == copy
    assert one != other
    chex.assert_trees_all_equal(
        task.evaluate(params, state), task.evaluate(params, state)
    )


def test_a_linen_model_and_the_same_in_nnx_agree(make):
    linen, other = make("linen"), make("nnx")
    params, state = other.init(jax.random.key(0))
    names = {"hidden": "Dense_0", "norm": "BatchNorm_0", "out": "Dense_1"}
    renamed = {names[name]: value for name, value in params.items()}
    statistics = {"batch_stats": {"BatchNorm_0": state["norm"]}}
    for name, value in other.evaluate(params, state).items():
        np.testing.assert_allclose(
            linen.evaluate(renamed, statistics)[name], value, rtol=1e-5
        )


def test_a_metric_of_one_s_own_is_a_mean_over_examples(make):
    task = make("linen")
    params, state = jax.tree.map(jnp.zeros_like, task.init(jax.random.key(0)))
    metrics = task.evaluate(params, state)  # all classes have the same probability
    assert metrics["test_confidence"] == pytest.approx(0.1)
    assert metrics["train_loss"] == pytest.approx(math.log(10), rel=1e-5)


def test_a_model_without_state_or_dropout_has_a_plain_task(make):
    network = tasks.nnx(lambda rngs: nnx.Linear(64, 10, rngs=rngs))
    assert not network.trains_apart
    assert not make("digits_mlp").has_state
