"""A Transformer in parts is the Transformer, but for the head's own matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments.tasks import models, stacked
from tests.experiments.tasks.tasks_test import first
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

DEPTH = 3


@pytest.mark.parametrize("name", shortened(["char_lm", "tokens"], "char_lm"))
def test_a_model_in_parts_begins_with_the_loss_of_the_whole(make, name):
    sizes = dict(depth=DEPTH, evaluated_tokens=512)
    whole, parts = (make(name, **sizes, in_parts=p) for p in (False, True))
    key, batch = jax.random.key(1), first(whole.batches(0, 0, 1))
    params = parts.init(key)
    assert parts.parts.layers_of(params) == DEPTH and whole.parts is None
    expected = whole.loss(whole.init(key), batch)
    assert parts.loss(params, batch) == pytest.approx(float(expected), rel=1e-5)
    for metric, value in whole.evaluate(whole.init(key)).items():
        assert parts.evaluate(params)[metric] == pytest.approx(float(value), rel=1e-5)


def test_layers_lie_in_their_order(make):
    sizes = dict(depth=DEPTH, evaluated_tokens=512)
    params = make("char_lm", **sizes, in_parts=False).init(jax.random.key(1))
    blocks = stacked.cut(params)["blocks"]
    for layer in range(DEPTH):
        jax.tree.map(
            lambda all_, one, layer=layer: np.testing.assert_array_equal(
                all_[layer], one
            ),
            blocks,
            params[f"TransformerBlock_{layer}"],
        )


def test_the_head_s_matrix_is_trained_alone(make):
    task = make("char_lm", in_parts=True)
    params = task.init(jax.random.key(1))
    grads = jax.grad(task.loss)(params, first(task.batches(0, 0, 1)))
    tied = jax.grad(make("char_lm").loss)(
        make("char_lm").init(jax.random.key(1)), first(task.batches(0, 0, 1))
    )
    both = [grads["embed"]["tokens"], grads["head"]["logits"]]
    total = both[0]["embedding"] + both[1]["embedding"]
    np.testing.assert_allclose(total, tied["Embed_0"]["embedding"], atol=1e-6)
    assert all(jnp.abs(one["embedding"]).max() > 1e-3 for one in both)


def test_a_block_is_traced_once_for_all_stages_of_all_steps(make, monkeypatch):
    """Tracing a model of flax is what an update of many stages takes longest to do."""
    task = make("char_lm", depth=DEPTH, in_parts=True)
    params, batch = task.init(jax.random.key(1)), first(task.batches(0, 0, 1))
    traced, gelu = [], models.nn.gelu
    monkeypatch.setattr(models.nn, "gelu", lambda x: traced.append(0) or gelu(x))
    for stages in (2, DEPTH):
        schedule = dj.pipelines.pipedream(stages)
        pipe = dj.pipelines.mixed(task.parts, optax.sgd(0.1), schedule)
        jax.eval_shape(lambda pipe=pipe: pipe.step(pipe.init(params, batch), batch))
    assert len(traced) == 1


def test_no_two_leaves_are_one_buffer(make):
    leaves = jax.tree.leaves(stacked.cut(make("char_lm").init(jax.random.key(1))))
    assert len({leaf.unsafe_buffer_pointer() for leaf in leaves}) == len(leaves)
