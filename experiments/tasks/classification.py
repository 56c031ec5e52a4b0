"""Cross-entropy and accuracy of a network that tells classes apart."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.tasks.task import Task


def classify(
    model: nn.Module,
    batches: Callable[..., Any],
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    facts: Mapping[str, float | str],
    *,
    examples: int,
) -> Task:
    """The task of telling apart the classes of images.

    Args:
        model: images [batch, ...] -> logits [batch, classes].
        batches: training batches {"image": ..., "label": int32}, or parts of them.
        train: the training examples that are evaluated, one leading axis.
        test: the held-out examples.
        facts: the task's.
        examples: in a batch.

    Returns:
        The task; its parameters are the model's.
    """
    train, test = jax.tree.map(jnp.asarray, (dict(train), dict(test)))

    def init(key):
        return model.init(key, train["image"][:1])["params"]

    def scores(params, batch):
        logits = model.apply({"params": params}, batch["image"])
        # one-hot: the gradient of a gather is a scatter, slow on a CPU
        targets = jax.nn.one_hot(batch["label"], logits.shape[-1])
        loss = optax.softmax_cross_entropy(logits, targets).mean()
        return loss, (logits.argmax(-1) == batch["label"]).mean()

    def evaluate(params):
        def of_one(example):
            return scores(params, jax.tree.map(lambda leaf: leaf[None], example))

        metrics = {}
        for name, examples in {"train": train, "test": test}.items():
            losses, hits = jax.lax.map(of_one, examples, batch_size=256)
            metrics |= {f"{name}_loss": losses.mean(), f"{name}_accuracy": hits.mean()}
        return metrics

    return Task(
        init=init,
        loss=lambda params, batch: scores(params, batch)[0],
        batches=batches,
        evaluate=evaluate,
        facts=facts,
        examples=examples,
    )
