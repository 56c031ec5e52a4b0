"""The metrics of models in training."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import optax

from experiments.training.jobs import Model


@functools.lru_cache(maxsize=8)  # programs of one task share one compiled function
def evaluator(task: Any, further: tuple) -> Callable[[Model], dict[str, jax.Array]]:
    """The metrics of models [seeds, cells, ...]."""

    def of_one(model):
        metrics = task.evaluate(*(model if task.has_state else model[:1]))
        for name, value in further:
            if name in metrics:
                raise ValueError(
                    f"`metrics` has {name!r}, which the task's `evaluate`"
                    " returns already: choose another name."
                )
            metrics = metrics | {name: value(model, task)}
        return metrics

    @jax.jit
    def of_all(model):
        shape = jax.tree.leaves(model)[0].shape[:2]
        # a few cells at a time: the activations of a grid on a data set are large
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), model)
        metrics = jax.lax.map(of_one, flat, batch_size=8)
        return jax.tree.map(lambda x: x.reshape(shape), metrics)

    return of_all


def gradient_norm(model: Model, task: Any) -> jax.Array:
    """A metric: the norm of the gradient of the loss over all training data."""

    def loss(params):
        return task.evaluate(params, *(model[1:] * task.has_state))["train_loss"]

    return optax.tree.norm(jax.grad(loss)(model.params))
