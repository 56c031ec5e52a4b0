"""The digits, and the task that `classify` makes from data."""

import jax
import numpy as np
import pytest
from sklearn import datasets

from experiments.tasks import batches
from tests.experiments.tasks.tasks_test import first, trained


@pytest.mark.parametrize("name", ["digits_mlp", "breast_cancer"])
def test_the_evaluated_training_loss_is_the_loss_of_the_full_batch(make, name):
    task = make(name, batch_size=0)
    params = task.init(jax.random.key(0))
    full = task.loss(params, first(task.batches(0, 0, 1)))
    np.testing.assert_allclose(task.evaluate(params)["train_loss"], full, rtol=1e-5)
    assert task.examples == task.facts["train_examples"]


@pytest.mark.parametrize("name", ["digits_mlp", "digits_cnn"])
def test_digits_training_and_held_out_images_are_all_of_the_data(make, name):
    task = make(name, batch_size=0)
    assert task.facts["train_examples"] + task.facts["test_examples"] == 1797
    seen = first(task.batches(0, 0, 1))
    train, _ = batches.split(1797, test_fraction=0.25, seed=0)
    data = datasets.load_digits()
    np.testing.assert_array_equal(16 * seen["image"][..., 0], data.images[train])
    np.testing.assert_array_equal(seen["label"], data.target[train])


def test_digits_are_learned_and_told_apart_in_held_out_images(make):
    task = make("digits_mlp", batch_size=32)
    params = jax.device_get(trained(task, steps=150)[0])
    metrics = task.evaluate(params)
    assert metrics["test_accuracy"] > 0.9
    # the same network, written out
    data = datasets.load_digits()
    _, test = batches.split(1797, test_fraction=0.25, seed=0)
    x, hidden, last = data.data[test] / 16.0, params["Dense_0"], params["Dense_1"]
    logits = np.maximum(x @ hidden["kernel"] + hidden["bias"][None], 0.0)
    logits = logits @ last["kernel"] + last["bias"][None]
    hits = logits.argmax(1) == data.target[test]
    assert metrics["test_accuracy"] == pytest.approx(hits.mean())
    log_sums = np.log(np.exp(logits).sum(1))
    losses = log_sums - logits[np.arange(len(test)), data.target[test]]
    assert metrics["test_loss"] == pytest.approx(losses.mean(), rel=1e-4)
