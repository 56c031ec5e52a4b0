"""Its facts describe the objective, and its losses are computed from the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import datasets

from experiments.tasks import batches
from tests.experiments.tasks.tasks_test import first


def test_breast_cancer_facts_are_those_of_the_training_objective(make):
    task = make("breast_cancer", batch_size=0, l2=0.01)
    batch = first(task.batches(0, 0, 1))
    flat, unravel = jax.flatten_util.ravel_pytree(task.init(jax.random.key(0)))

    def loss(w):
        return task.loss(unravel(w), batch)

    @jax.jit
    def optimum():
        """By undamped Newton steps, which suffice for this penalty."""
        gradient, hessian = jax.grad(loss), jax.hessian(loss)

        def newton(_, w):
            return w - jnp.linalg.solve(hessian(w), gradient(w))

        w = jax.lax.fori_loop(0, 12, newton, jnp.zeros(flat.size))
        normals = jax.random.normal(jax.random.key(1), (3, flat.size))
        nearby = jax.vmap(loss)(w[None] + 0.1 * normals)
        return loss(w), nearby, gradient(w), jnp.linalg.eigvalsh(hessian(w))

    least, nearby, slopes, curvatures = optimum()
    np.testing.assert_allclose(slopes, 0.0, atol=1e-6)
    # float32 here, float64 there
    np.testing.assert_allclose(least, task.facts["optimum_loss"], rtol=1e-5)
    np.testing.assert_allclose(curvatures[-1], task.facts["sharpness"], rtol=1e-4)
    assert (nearby > task.facts["optimum_loss"]).all()


def test_losses_are_those_of_standardised_data_and_of_the_squared_weights(make):
    task = make("breast_cancer", l2=0.2)
    params = {"w": np.linspace(-0.3, 0.1, 30, dtype=np.float32), "b": np.float32(0.2)}
    data = datasets.load_breast_cancer()
    splits = batches.split(569, test_fraction=0.25, seed=0)
    mean, spread = data.data[splits[0]].mean(0), data.data[splits[0]].std(0)
    penalty = 0.1 * np.sum(params["w"] ** 2)  # the bias is spared
    metrics = task.evaluate(params)
    for name, rows in zip(("train", "test"), splits, strict=True):
        x = (data.data[rows] - mean) / spread
        benign = 1.0 / (1.0 + np.exp(-(x @ params["w"] + params["b"])))
        right = np.where(data.target[rows] == 1, benign, 1.0 - benign)
        expected = -np.log(right).mean() + penalty
        assert metrics[f"{name}_loss"] == pytest.approx(expected, rel=1e-4)
        assert metrics[f"{name}_accuracy"] == pytest.approx((right > 0.5).mean())


def test_each_seed_holds_out_other_tumors_if_it_draws_the_split(make):
    task = make("breast_cancer", l2=0.2, split_by_seed=True)
    data = datasets.load_breast_cancer()
    held_out = []
    for seed in range(3):
        params, split = jax.tree.map(np.asarray, task.init(jax.random.key(seed)))
        rows = {part: np.asarray(split[part]) for part in ("train", "test")}
        held_out.append(frozenset(rows["test"].tolist()))
        assert len(rows["test"]) == task.facts["test_examples"] == 142
        assert sorted([*rows["train"], *rows["test"]]) == list(range(569))
        known = data.data[rows["train"]]

        def losses(chosen, w, known=known):
            x = (data.data[chosen] - known.mean(0)) / known.std(0)
            margins = (2 * data.target[chosen] - 1) * (x @ np.asarray(w["w"]) + w["b"])
            return np.logaddexp(0, -margins).mean() + 0.1 * np.sum(w["w"] ** 2)

        metrics = task.evaluate(params, split)
        for part, chosen in rows.items():
            expected = losses(chosen, params)
            assert metrics[f"{part}_loss"] == pytest.approx(expected, rel=1e-4)
        batch = first(task.batches(seed, 0, 1))
        loss, after = task.loss(params, batch, split)
        expected = losses(rows["train"][np.asarray(batch["row"])], params)
        assert loss == pytest.approx(expected, rel=1e-4)
        jax.tree.map(np.testing.assert_array_equal, after, split)
    assert len({*held_out}) == 3
