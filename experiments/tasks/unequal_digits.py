"""Logistic regression on digits whose workers have unequal data, with a penalty."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import optax

from experiments.tasks import batches
from experiments.tasks.digits import digits_mlp
from experiments.tasks.task import Task


def unequal_digits(
    *, batch_size: int = 8, workers: int = 8, concentration: float = 0.05, l2: float
) -> Task:
    """Classifies digits that a Dirichlet distribution divides among the workers.

        objective(w) = mean over workers of their mean losses + (l2 / 2) |w|^2

    It is strongly convex. `train_loss` and `test_loss` are means over all examples,
    without the penalty.

    Args:
        batch_size: examples per gradient.
        workers: the number of workers.
        concentration: of the distribution; if it is small, a worker has few classes.
        l2: the coefficient of the penalty, positive; biases have it too.

    Returns:
        The task. Its `evaluate` has the excess of the objective over its minimum,
        `excess_loss`, and how much higher the loss is on the data of the second half of
        the workers, `slow_data_excess_loss`.
    """
    split = dict(workers=workers, concentration=concentration)
    task = digits_mlp(depth=0, batch_size=batch_size, **split)
    drawn = digits_mlp(batch_size=0).batches(0, 0, 1)
    whole = {name: np.array(leaf[0]) for name, leaf in drawn.items()}
    owner = batches.dirichlet(whole["label"], **split, seed=0)  # as the task does
    of_slow = owner >= workers // 2
    least = optimum(whole, owner, l2)

    def loss(params, these):
        return task.loss(params, {name: leaf[these] for name, leaf in whole.items()})

    def penalty(params):
        return l2 / 2 * optax.tree.norm(params, squared=True)

    def evaluate(params):
        of_each = [loss(params, owner == worker) for worker in range(workers)]
        return task.evaluate(params) | {
            "excess_loss": sum(of_each) / workers + penalty(params) - least,
            "slow_data_excess_loss": loss(params, of_slow) - loss(params, ~of_slow),
        }

    return dataclasses.replace(
        task,
        loss=lambda params, batch: task.loss(params, batch) + penalty(params),
        evaluate=evaluate,
    )


def optimum(examples: Mapping[str, np.ndarray], owner: np.ndarray, l2: float) -> float:
    """The minimum of the objective of `unequal_digits`, in float64.

    A column of ones stands for the biases, so that they have the penalty too.
    """
    from sklearn import linear_model  # seconds to import

    counts = np.bincount(owner)
    weight = 1 / (len(counts) * counts[owner])
    pixels = examples["image"].reshape(len(owner), -1).astype(np.float64)
    inputs = np.column_stack([pixels, np.ones(len(owner))])
    fit = linear_model.LogisticRegression(
        C=1 / l2, fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(inputs, examples["label"], sample_weight=weight)
    chance = fit.predict_proba(inputs)[np.arange(len(owner)), examples["label"]]
    return float(-weight @ np.log(chance) + l2 / 2 * (fit.coef_**2).sum())
