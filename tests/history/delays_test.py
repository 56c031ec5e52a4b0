import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import delayjax as dj
from tests.support.cases import shortened

DRAWS = 20_000
KEY = jax.random.key(0)

LAWS = {
    "uniform": (lambda key: dj.delays.uniform(key, 2, 6), stats.randint(2, 7)),
    "geometric": (lambda key: dj.delays.geometric(key, 4), stats.geom(1 / 5, loc=-1)),
    "geometric below one": (
        lambda key: dj.delays.geometric(key, 0.5),
        stats.geom(2 / 3, loc=-1),
    ),
    "poisson": (lambda key: dj.delays.poisson(key, 4.0), stats.poisson(4.0)),
}
# (key, mean, ...) -> a delay; mean -> its variance
RANDOM = {
    "uniform": (
        lambda key, m, **axis: dj.delays.uniform(key, 0, 2 * m, **axis),
        lambda m: m * (m + 1) / 3,
    ),
    "geometric": (dj.delays.geometric, lambda m: m * (1 + m)),
    "poisson": (dj.delays.poisson, lambda m: m),
}


def draws(delay, steps=DRAWS):
    return np.asarray(jax.jit(jax.vmap(delay))(jnp.arange(steps)))


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    make, law = LAWS[name]
    delay = make(KEY)
    seen = draws(delay)
    # in any order, compiled or not: nothing is carried from step to step
    assert [int(delay(step)) for step in (7, 3)] == [seen[7], seen[3]]
    assert seen.dtype == np.int32
    low, high = law.support()
    assert seen.min() >= low
    assert seen.max() <= high
    # 5 standard errors: a false alarm in 10^6 keys, and this key is fixed
    assert abs(seen.mean() - law.mean()) <= 5 * np.sqrt(law.var() / DRAWS)
    # chi-square over the values expected at least 5 times (below that it is no
    # chi-square), the rest in one cell: k - 1 degrees of freedom, variance 2(k - 1)
    values = np.arange(low, low + 100)
    values = values[DRAWS * law.pmf(values) >= 5]
    expected = DRAWS * law.pmf(values)
    counts = np.array([(seen == value).sum() for value in values])
    expected = np.append(expected, max(DRAWS - expected.sum(), 1e-9))
    counts = np.append(counts, DRAWS - counts.sum())
    cells = len(values)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square <= cells + 5 * np.sqrt(2 * cells)


@pytest.mark.parametrize("name", RANDOM)
def test_workers_and_keys_draw_apart_and_workers_together_when_told_no_axis(name):
    make, _ = RANDOM[name]

    def staleness(axis_name):
        delay = make(KEY, 4, axis_name=axis_name)
        workers = jax.vmap(lambda _, step: delay(step), (0, None), axis_name="workers")
        return jax.vmap(workers, (None, 0))(jnp.arange(3), jnp.arange(2000))

    @jax.jit
    def seen():
        other = jax.vmap(make(jax.random.key(1), 4))(jnp.arange(2000))
        return staleness(None), staleness("workers"), other

    together, apart, other = (np.asarray(x, float) for x in seen())
    assert (together == together[:, :1]).all()
    # each worker and key has the law; no two are correlated (5 standard errors)
    apart = np.column_stack([apart, other])
    correlation = np.corrcoef(apart.T)[np.triu_indices(4, 1)]
    assert (abs(correlation) < 5 / np.sqrt(2000)).all()
    spread = 5 * together[:, 0].std() * np.sqrt(2 / 2000)
    assert (abs(apart.mean(0) - together[:, 0].mean()) < spread).all()


@pytest.mark.parametrize("name", shortened(RANDOM, "poisson"))
def test_workers_draw_the_same_apart_under_vmap_and_on_devices(name):
    delay = RANDOM[name][0](KEY, 4, axis_name="workers")
    mesh = jax.make_mesh((4,), ("workers",))
    on_devices = jax.shard_map(
        lambda: delay(5)[None], mesh=mesh, in_specs=(), out_specs=jax.P("workers")
    )
    under_vmap = jax.vmap(lambda _: delay(5), axis_name="workers")(jnp.arange(4))
    np.testing.assert_array_equal(jax.jit(on_devices)(), under_vmap)


@pytest.mark.parametrize("name", RANDOM)
def test_parameters_may_be_a_grid(name):
    make, variance = RANDOM[name]
    means, steps = np.array([0, 1, 8]), 4000
    draw = jax.jit(jax.vmap(lambda mean: jax.vmap(make(KEY, mean))(jnp.arange(steps))))
    seen = np.asarray(draw(means))
    # 5 standard errors, none at a mean of 0
    assert (abs(seen.mean(1) - means) <= 5 * np.sqrt(variance(means) / steps)).all()


def test_a_trace_is_followed_and_starts_anew_at_its_end():
    for shape in ((4,), (4, 1)):
        trace = np.array([0, 3, 1, 2], np.int64).reshape(shape)
        np.testing.assert_array_equal(
            draws(dj.delays.from_trace(trace), 10), [0, 3, 1, 2, 0, 3, 1, 2, 0, 3]
        )


def test_each_workers_delay_may_be_traced_and_its_axis_named():
    def ask(delays):
        delay = dj.delays.per_worker(delays, axis_name="ranks")
        return jax.vmap(lambda _: delay(0), axis_name="ranks")(jnp.arange(2))

    grid = jnp.array([[0, 1], [4, 2]])
    np.testing.assert_array_equal(jax.jit(jax.vmap(ask))(grid), grid)
