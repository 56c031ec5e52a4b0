"""Logistic regression on breast cancer data: strongly convex, of known sharpness."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.tasks import batches
from experiments.tasks.task import Task


def breast_cancer(
    *, batch_size: int = 32, l2: float = 1e-3, split_by_seed: bool = False
) -> Task:
    """Classifies 569 tumors as malignant or benign from 30 measurements.

        loss(w, b) = mean_i log(1 + exp(-s_i (w . x_i + b))) + (l2 / 2) |w|^2

    with s_i = +1 or -1 and every measurement standardized by its mean and spread over
    the training examples. The data come with scikit-learn. The reported losses include
    the penalty.

    Args:
        batch_size: examples per update; 0 is the full batch.
        l2: the coefficient of the penalty (l2 / 2) |w|^2, positive: the classes are
            nearly separable, so that without it the optimum may lie at infinity.
        split_by_seed: whether each seed draws which tumors are held out. Otherwise
            these are the same for all seeds.

    Returns:
        The task. Its facts hold the minimum of the training loss, `optimum_loss`, and
        the largest eigenvalue of the Hessian there, `sharpness`, both from Newton steps
        in float64; neither if seeds draw the split.
    """
    from sklearn import datasets  # seconds to import

    data = datasets.load_breast_cancer()
    train_rows, test_rows = batches.split(len(data.target), test_fraction=0.25, seed=0)
    mean, spread = data.data[train_rows].mean(0), data.data[train_rows].std(0)
    features = ((data.data - mean) / spread).astype(np.float32)
    signs = (2 * data.target - 1).astype(np.float32)
    train, test = (
        {"features": features[rows], "sign": signs[rows]}
        for rows in (train_rows, test_rows)
    )

    def init(key):
        size = features.shape[1]
        return {"w": jax.random.normal(key, (size,)) / size**0.5, "b": jnp.zeros(())}

    def scores(params, batch):
        margin = batch["sign"] * (batch["features"] @ params["w"] + params["b"])
        penalty = 0.5 * l2 * (params["w"] @ params["w"])
        return jax.nn.softplus(-margin).mean() + penalty, (margin > 0).mean()

    def both_scores(params, train, test):
        train_loss, train_accuracy = scores(params, train)
        test_loss, test_accuracy = scores(params, test)
        return {
            "train_loss": train_loss,
            "test_loss": test_loss,
            "train_accuracy": train_accuracy,
            "test_accuracy": test_accuracy,
        }

    sizes = {"train_examples": len(train_rows), "test_examples": len(test_rows)}
    if split_by_seed:
        rows_of, of_rows = _drawn(data.data, signs, len(test_rows))
        positions = {"row": np.arange(len(train_rows))}

        def loss(params, batch, state):
            examples = of_rows(state, state["train"][batch["row"]])
            return scores(params, examples)[0], state

        def evaluate(params, state):
            parts = (of_rows(state, state[part]) for part in ("train", "test"))
            return both_scores(params, *parts)

        return Task(
            init=lambda key: (init(key), rows_of(key)),
            loss=loss,
            batches=batches.shuffled(positions, batch_size),
            evaluate=evaluate,
            facts=sizes,
            examples=batch_size or len(train_rows),
        )

    optimum_loss, sharpness = _optimum(train["features"], train["sign"], l2)
    return Task(
        init=init,
        loss=lambda params, batch: scores(params, batch)[0],
        batches=batches.shuffled(train, batch_size),
        evaluate=lambda params: both_scores(
            params, *jax.tree.map(jnp.asarray, (train, test))
        ),
        facts=sizes | {"optimum_loss": optimum_loss, "sharpness": sharpness},
        examples=batch_size or len(train_rows),
    )


def _drawn(
    measurements: np.ndarray, signs: np.ndarray, held_out: int
) -> tuple[Callable, Callable]:
    """Two functions, for a split that a key draws.

    key -> the split: the rows of both parts, int32 [train] and [test], and the mean and
    the spread of the training examples, float32 [1, 30]; and (split, rows [n]) -> their
    examples, float32 [n, 30] and [n].
    """
    raw, sign = jnp.asarray(measurements, jnp.float32), jnp.asarray(signs)

    def rows_of(key):
        order = jax.random.permutation(jax.random.fold_in(key, 1), len(signs))
        test, train = order[:held_out], order[held_out:]
        known = raw[train]
        mean, spread = known.mean(0, keepdims=True), known.std(0, keepdims=True)
        return dict(train=train, test=test, mean=mean, spread=spread)

    def of_rows(state, rows):
        features = (raw[rows] - state["mean"]) / state["spread"]
        return {"features": features, "sign": sign[rows]}

    return rows_of, of_rows


def _optimum(x: np.ndarray, signs: np.ndarray, l2: float) -> tuple[float, float]:
    """The smallest loss and the largest eigenvalue of the Hessian there."""
    from scipy import special
    from sklearn import linear_model

    x = x.astype(np.float64)
    newton = linear_model.LogisticRegression(
        C=1.0 / (l2 * len(x)), solver="newton-cholesky", tol=1e-10
    )
    fit = newton.fit(x, signs)
    (w,), margin = fit.coef_, signs * fit.decision_function(x)
    loss = np.logaddexp(0.0, -margin).mean() + 0.5 * l2 * (w @ w)
    x = np.column_stack([x, np.ones(len(x))])  # the last column is for b
    curvature = special.expit(margin) * special.expit(-margin)
    hessian = (x.T * curvature) @ x / len(x) + np.diag([*[l2] * len(w), 0.0])
    return float(loss), float(np.linalg.eigvalsh(hessian)[-1])
