"""Windows of texts, and losses of what comes next."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import tasks
from experiments.tasks import language, models
from tests.experiments.tasks.small import TEXT
from tests.experiments.tasks.tasks_test import first

TEXTS = [np.arange(100, 113), np.arange(200, 206), np.arange(300, 330)]


@pytest.mark.parametrize("name", ["char_lm", "tokens"])
def test_a_network_of_zeros_is_as_good_as_chance(make, name):
    task = make(name)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    vocab = task.facts.get("vocabulary", 16)
    chance = pytest.approx(math.log(vocab), rel=1e-5)
    assert task.loss(zeros, first(task.batches(0, 0, 1))) == chance
    assert task.evaluate(zeros) == {"train_loss": chance, "test_loss": chance}


def test_windows_start_at_every_place_of_every_text():
    task = tasks.predict_next(TEXTS, TEXTS, vocab=400, context=4, batch_size=64)
    windows = task.batches(0, 0, 20).reshape(-1, 5)
    assert (np.diff(windows) == 1).all()  # never across two texts
    starts = {int(start) for text in TEXTS for start in text[: len(text) - 4]}
    assert set(windows[:, 0].tolist()) == starts


# of 11 windows every 11th, every third or fourth, and all
@pytest.mark.parametrize(("tokens", "last"), [(3, 100), (12, 312), (10_000, 324)])
def test_evaluated_windows_are_spread_and_predict_no_token_twice(tokens, last):
    windows = language._evaluated(TEXTS, 4, tokens)
    there_are = (13 - 1) // 4 + (6 - 1) // 4 + (30 - 1) // 4
    assert windows.shape == (min(there_are, max(1, tokens // 4)), 5)
    assert windows[-1, 0] == last
    assert (np.diff(windows) == 1).all()
    predicted = windows[:, 1:].ravel()
    assert len(set(predicted.tolist())) == predicted.size


class Frequencies(nn.Module):
    """A stand-in for the Transformer that looks at nothing."""

    vocab: int

    @nn.compact
    def __call__(self, tokens):
        logits = self.param("logits", nn.initializers.zeros, (self.vocab,))
        return jnp.broadcast_to(logits, (*tokens.shape, self.vocab))


def test_train_and_test_losses_are_those_of_the_two_texts(monkeypatch):
    monkeypatch.setattr(models, "Transformer", lambda vocab, **_: Frequencies(vocab))
    train, test = [np.zeros(100, int)], [np.repeat([0, 1], [17, 64])]
    task = tasks.predict_next(train, test, vocab=2, **TEXT)
    params = {"logits": jnp.array([2.0, 0.0])}
    seldom, often = math.log(1 + math.exp(2)), math.log(1 + math.exp(-2))
    metrics = task.evaluate(params)
    assert metrics["train_loss"] == pytest.approx(often, rel=1e-5)
    # 80 tokens are predicted: the first 16 are 0, the others 1
    expected = 0.2 * often + 0.8 * seldom
    assert metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    batch = first(task.batches(0, 0, 1))
    assert task.loss(params, batch) == pytest.approx(often, rel=1e-5)
