import functools

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
    "uniform": (dj.delays.uniform(KEY, 2, 6), stats.randint(2, 7)),
    "geometric": (dj.delays.geometric(KEY, 4.0), stats.geom(1 / 5, loc=-1)),
    "geometric below one": (dj.delays.geometric(KEY, 0.5), stats.geom(2 / 3, loc=-1)),
    "poisson": (dj.delays.poisson(KEY, 4.0), stats.poisson(4.0)),
}
# laws with one value: the value
CERTAIN = {
    "uniform": (dj.delays.uniform(KEY, 3, 3), 3),
    "geometric": (dj.delays.geometric(KEY, 0.0), 0),
    "poisson": (dj.delays.poisson(KEY, 0.0), 0),
    "from_trace": (dj.delays.from_trace([3]), 3),
}
RANDOM = {
    "uniform": functools.partial(dj.delays.uniform, low=0, high=9),
    "geometric": functools.partial(dj.delays.geometric, mean=4.0),
    "poisson": functools.partial(dj.delays.poisson, mean=4.0),
}


def draws(delay, steps=DRAWS):
    return np.asarray(jax.jit(jax.vmap(delay))(jnp.arange(steps)))


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    delay, law = LAWS[name]
    seen = draws(delay)
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


@pytest.mark.parametrize("name", CERTAIN)
def test_a_law_of_one_value_always_gives_it(name):
    delay, value = CERTAIN[name]
    assert set(draws(delay, 50)) == {value}


@pytest.mark.parametrize("name", RANDOM)
def test_the_same_key_and_step_give_the_same_delay(name):
    first, again = draws(RANDOM[name](KEY), 50), RANDOM[name](KEY)
    # in any order, compiled or not: nothing is carried from step to step
    assert [int(again(step)) for step in (7, 3)] == [first[7], first[3]]
    other = draws(RANDOM[name](jax.random.key(1)), 50)
    assert (other != first).any()


@pytest.mark.parametrize("name", RANDOM)
def test_workers_draw_apart_when_told_their_axis(name):
    def staleness(axis_name):
        delay = RANDOM[name](KEY, axis_name=axis_name)
        workers = jax.vmap(lambda _, step: delay(step), (0, None), axis_name="workers")
        seen = jax.jit(jax.vmap(workers, (None, 0)))(jnp.arange(3), jnp.arange(2000))
        return np.asarray(seen, float)

    together, apart = staleness(None), staleness("workers")
    assert (together == together[:, :1]).all()
    # each worker has the law; no two are correlated (5 standard errors of n draws)
    correlation = np.corrcoef(apart.T)[np.triu_indices(3, 1)]
    assert (abs(correlation) < 5 / np.sqrt(2000)).all()
    spread = 5 * together[:, 0].std() * np.sqrt(2 / 2000)
    assert (abs(apart.mean(0) - together[:, 0].mean()) < spread).all()


@pytest.mark.parametrize("name", shortened(RANDOM, "poisson"))
def test_workers_draw_the_same_apart_under_vmap_and_on_devices(name):
    delay = RANDOM[name](KEY, axis_name="workers")
    mesh = jax.make_mesh((4,), ("workers",))
    on_devices = jax.shard_map(
        lambda: delay(5)[None], mesh=mesh, in_specs=(), out_specs=jax.P("workers")
    )
    under_vmap = jax.vmap(lambda _: delay(5), axis_name="workers")(jnp.arange(4))
    np.testing.assert_array_equal(on_devices(), under_vmap)


@pytest.mark.parametrize(
    ("make", "variance"),
    [
        (lambda m: dj.delays.uniform(KEY, 0, 2 * m), lambda m: m * (m + 1) / 3),
        (lambda m: dj.delays.geometric(KEY, m), lambda m: m * (1 + m)),
        (lambda m: dj.delays.poisson(KEY, m), lambda m: m),
    ],
    ids=["uniform", "geometric", "poisson"],
)
def test_parameters_may_be_a_grid(make, variance):
    means, steps = np.array([0, 1, 8]), 4000
    draw = jax.jit(jax.vmap(lambda mean: jax.vmap(make(mean))(jnp.arange(steps))))
    seen = np.asarray(draw(means))
    # 5 standard errors
    assert (abs(seen.mean(1) - means) <= 5 * np.sqrt(variance(means) / steps)).all()


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_trace_is_followed_and_starts_anew_at_its_end(shape):
    trace = np.array([0, 3, 1, 2], np.int64).reshape(shape)
    np.testing.assert_array_equal(
        draws(dj.delays.from_trace(trace), 10), [0, 3, 1, 2, 0, 3, 1, 2, 0, 3]
    )


def test_each_worker_has_its_own_delay():
    delays = np.array([0, 5, 2, 1])
    mesh = jax.make_mesh((4,), ("workers",))
    delay = dj.delays.per_worker(delays)
    under_vmap = jax.vmap(lambda _: delay(3), axis_name="workers")(jnp.arange(4))
    np.testing.assert_array_equal(under_vmap, delays)
    on_devices = jax.shard_map(
        lambda: delay(3)[None], mesh=mesh, in_specs=(), out_specs=jax.P("workers")
    )
    np.testing.assert_array_equal(on_devices(), delays)


def test_each_workers_delay_may_be_traced_and_its_axis_named():
    def ask(delays):
        delay = dj.delays.per_worker(delays, axis_name="ranks")
        return jax.vmap(lambda _: delay(0), axis_name="ranks")(jnp.arange(2))

    grid = jnp.array([[0, 1], [4, 2]])
    np.testing.assert_array_equal(jax.jit(jax.vmap(ask))(grid), grid)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: dj.delays.uniform(KEY, 0, 2**31 - 1),
            ValueError,
            r"`high` must be .* got 2147483647",
        ),
        (
            lambda: dj.delays.per_worker([1], axis_name=())(0),
            TypeError,
            r"`axis_name` .*\(\)",
        ),
        (
            lambda: dj.delays.per_worker([1])(0),
            NameError,
            "no axis 'workers' here: take the step in workers.simulate",
        ),
        (
            lambda: dj.delays.uniform(KEY, -1, 2),
            ValueError,
            r"`low` .*non-negative .* got -1",
        ),
        (lambda: dj.delays.uniform(KEY, 0.0, 2), ValueError, r"`low` .* got 0\.0"),
        (lambda: dj.delays.uniform(KEY, 0, 2.5), ValueError, r"`high` .* got 2\.5"),
        (
            lambda: dj.delays.uniform(KEY, 3, 2),
            ValueError,
            r"`low` must not exceed `high`, got 3 and 2",
        ),
        (lambda: dj.delays.geometric(KEY, -0.5), ValueError, r"`mean` .* got -0\.5"),
        (lambda: dj.delays.geometric(KEY, np.nan), ValueError, r"`mean` .* got nan"),
        (lambda: dj.delays.geometric(KEY, "4"), TypeError, r"`mean` .* got '4'"),
        (lambda: dj.delays.geometric(KEY, None), TypeError, r"`mean` .* got None"),
        (lambda: dj.delays.poisson(KEY, -2.0), ValueError, r"`mean` .* got -2\.0"),
        (lambda: dj.delays.poisson(KEY, np.inf), ValueError, r"`mean` .* got inf"),
        (lambda: dj.delays.poisson(KEY, [1, 2]), TypeError, r"`mean` .* got \[1, 2\]"),
        (
            lambda: dj.delays.from_trace(np.ones((5, 3), int)),
            ValueError,
            r"`staleness` .* got \(5, 3\): .*several gradients",
        ),
        (
            lambda: dj.delays.from_trace(np.ones((), int)),
            ValueError,
            r"`staleness` must have shape \[T\] or \[T, 1\], got \(\)",
        ),
        (
            lambda: dj.delays.from_trace(np.ones(0, int)),
            ValueError,
            r"`staleness` must have shape .* got \(0,\)",
        ),
        (lambda: dj.delays.from_trace([0, -1]), ValueError, r"`staleness` .*-1"),
        (
            lambda: dj.delays.from_trace([0, 2**40]),
            ValueError,
            r"`staleness` .*integer",
        ),
        (lambda: dj.delays.from_trace(None), ValueError, r"`staleness` .*got \(\)"),
        (  # -1 pads the rows of updates with fewer gradients
            lambda: dj.delays.from_trace([[0, 1], [2, -1]]),
            ValueError,
            r"`staleness` .*got \(2, 2\)",
        ),
        (
            lambda: dj.delays.from_trace([0.0, 1.0]),
            ValueError,
            r"`staleness` .*integer",
        ),
        (lambda: dj.delays.per_worker([1, -2]), ValueError, r"`delays` .*-2"),
        (lambda: dj.delays.per_worker([1.0, 2.0]), ValueError, r"`delays` .*integer"),
        (
            lambda: jax.vmap(
                lambda _: dj.delays.per_worker([1, 2])(0), axis_name="workers"
            )(jnp.arange(3)),
            ValueError,
            r"`delays` .* each of the 3 workers on axis 'workers', got 2",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call, error, message):
    with pytest.raises(error, match=message):
        call()
