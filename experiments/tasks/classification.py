"""Cross-entropy and accuracy of a network that classifies images."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.tasks.networks import Network
from experiments.tasks.task import Task


def classify(
    network: Network,
    batches: Callable[..., Any],
    train: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
    *,
    examples: int,
    facts: Mapping[str, float | str] | None = None,
    metrics: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] | None = None,
) -> Task:
    """The task of classifying images.

    Args:
        network: images [batch, ...] -> logits [batch, classes]; `linen(model)` or
            `nnx(make)`, with BatchNorm and dropout where it has them.
        batches: training batches {"image": ..., "label": int32}, or parts of them.
        train: the training examples to evaluate, with one leading axis.
        test: the held-out examples.
        examples: the number of examples in a batch.
        facts: the facts of the task.
        metrics: further metrics, {name: (logits [classes], label []) -> float32 []},
            whose means over `train` and `test` are train_NAME and test_NAME.

    Returns:
        The task; its parameters are the network's.
    """
    train, test = jax.tree.map(jnp.asarray, (dict(train), dict(test)))
    further = metrics or {}

    def init(key):
        params, state = network.init(key, train["image"][:1])
        return (params, state) if network.trains_apart else params

    def loss(params, batch):
        logits = network.predict(params, (), batch["image"])
        return cross_entropy(logits, batch["label"]).mean()

    def loss_in_training(params, batch, state, key):
        logits, state = network.train(params, state, batch["image"], key)
        return cross_entropy(logits, batch["label"]).mean(), state

    def evaluate(params, state=()):
        def of_one(example):
            (logits,) = network.predict(params, state, example["image"][None])
            label = example["label"]
            return {
                "loss": cross_entropy(logits, label),
                "accuracy": logits.argmax() == label,
            } | {name: metric(logits, label) for name, metric in further.items()}

        means = {}
        for part, examples in {"train": train, "test": test}.items():
            values = jax.lax.map(of_one, examples, batch_size=256)
            means |= {f"{part}_{name}": value.mean() for name, value in values.items()}
        return means

    return Task(
        init=init,
        loss=loss_in_training if network.trains_apart else loss,
        batches=batches,
        evaluate=evaluate,
        facts=facts or {},
        examples=examples,
    )


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The losses of logits [..., classes] on labels int32 [...], in nats."""
    # one-hot: the gradient of a gather is a scatter, slow on a CPU
    targets = jax.nn.one_hot(labels, logits.shape[-1])
    return optax.softmax_cross_entropy(logits, targets)
