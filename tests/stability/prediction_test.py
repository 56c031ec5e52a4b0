"""Learning rates at which a loss diverges: what optimizers under delay really do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import delayjax as dj
from delayjax import stability

# a bowl that is not aligned with its parameters
TURN = jnp.array([[0.8, -0.6], [0.6, 0.8]])
CURVATURES = jnp.array([5.0, 0.5])
AT = {"x": jnp.array([1.0, 2.0])}
LAW = [0.5, 0.0, 0.5]


def bowl(params, batch):
    return jnp.sum(CURVATURES * (TURN @ params["x"]) ** 2) / 2 + 0.0 * batch


def growth(optimizer, delay, start, updates):
    """The logarithmic growth of |x| per update, over the second half."""
    tx = dj.delayed(optimizer, delay)

    def update(carry, _):
        params, state = carry
        grads = jax.grad(bowl)(params, 0.0)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), jnp.linalg.norm(params["x"])

    begun = tx.init(start)
    if any(hasattr(s, "nu") for s in jax.tree.leaves(begun, is_leaf=has_moments)):
        begun = with_moments(begun)
    _, sizes = jax.lax.scan(update, (start, begun), length=updates)
    # peaks, over more than a turn of the slowest oscillation
    half, turn = updates // 2, updates // 8
    peaks = jnp.log(sizes[half : half + turn].max()), jnp.log(sizes[-turn:].max())
    return (peaks[1] - peaks[0]) / (updates - half - turn)


def has_moments(leaf):
    return isinstance(leaf, optax.ScaleByAdamState)


SECOND = {"x": jnp.array([4.0, 0.25])}


def with_moments(state):
    """Long in training, and with so large a second moment that no gradient counts."""
    late = jnp.asarray(2_000_000_000, jnp.int32)

    def old(leaf):
        return leaf._replace(count=late, nu=SECOND) if has_moments(leaf) else leaf

    return jax.tree.map(old, state, is_leaf=has_moments)


# a decay of 1 % in each of the 2 tau + 1 updates of half a turn: floats hold 120
SGD = [
    (0, {}),
    (3, {}),
    (3, {"momentum": 0.9}),
    (3, {"momentum": 0.5, "nesterov": True}),
]


@pytest.mark.parametrize(("delay", "options"), SGD)
def test_sgd_grows_from_one_per_cent_past_the_predicted_step(delay, options):
    limit = stability.predict_step_limit(
        bowl, AT, 0.0, stability.Dynamics(delay, **options)
    )
    expected = stability.Dynamics(delay, **options).step_limit() / 5.0
    assert limit == pytest.approx(expected, rel=1e-6)

    def measure(rate):
        return growth(optax.sgd(rate, **options), delay, AT, 120 * (2 * delay + 1))

    below, above = jax.jit(jax.vmap(measure))(limit * jnp.array([0.99, 1.01]))
    assert below < 0 < above


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("delay", [0, 1, 6])
def test_adam_grows_from_one_per_cent_past_its_limit_if_its_moment_stands_still(
    delay, nesterov
):
    options = {"b1": 0.8, "b2": 1 - 1e-7, "eps": 0.1, "nesterov": nesterov}
    limit = stability.learning_rate_limit(
        stability.sharpness(
            *(bowl, AT, 0.0),
            preconditioner=stability.adam_preconditioner(SECOND, eps=0.1),
        ),
        stability.Dynamics(delay, momentum=0.8, nesterov=nesterov),
    ) / (1 - 0.8)
    # the eigenvalues of D^-1/2 H D^-1/2 are those of D^-1 H
    divisor = np.sqrt(np.asarray(SECOND["x"])) + 0.1
    hessian = np.asarray(TURN.T @ jnp.diag(CURVATURES) @ TURN)
    largest = np.linalg.eigvals(hessian / divisor[:, None]).max()
    heavy = stability.Dynamics(delay, momentum=0.8, nesterov=nesterov).step_limit()
    assert limit == pytest.approx(heavy / (0.2 * largest), rel=1e-5)

    def measure(rate):
        tiny = jax.tree.map(lambda x: 1e-12 * x, AT)
        return growth(optax.adam(rate, **options), delay, tiny, 120 * (2 * delay + 1))

    below, above = jax.jit(jax.vmap(measure))(limit * jnp.array([0.99, 1.01]))
    assert below < 0 < above


def test_adam_trains_far_past_that_limit():
    # a gradient of 1e-4 along x: D is that small there, so is the limit at this point
    def loss(x, _):
        return jnp.sum(x**2) / 2

    at = jnp.array([1e-4, 1.0])
    divisor = stability.adam_preconditioner(jax.grad(loss)(at, None) ** 2)
    curvature = stability.sharpness(loss, at, None, preconditioner=divisor)
    limit = stability.learning_rate_limit(
        curvature, stability.Dynamics(0, momentum=0.9)
    ) / (1 - 0.9)
    assert limit == pytest.approx(38e-4, rel=1e-3)

    @jax.jit
    def trained(rate):
        tx = optax.adam(rate)

        def update(_, carry):
            updates, state = tx.update(carry[0], carry[1])
            return optax.apply_updates(carry[0], updates), state

        return jax.lax.fori_loop(0, 1000, update, (at, tx.init(at)))[0]

    assert loss(trained(30 * limit), None) < 1e-3 * loss(at, None)


def test_adam_divides_by_the_root_of_its_state_s_second_moment_without_bias():
    gradient = jax.grad(bowl)(AT, 0.0)
    state = optax.scale_by_adam().init(AT)
    direction, state = optax.scale_by_adam(b1=0.0).update(gradient, state)
    unbiased = jax.tree.map(lambda nu: nu / (1 - 0.999), state.nu)
    divisor = stability.adam_preconditioner(unbiased)
    np.testing.assert_allclose(direction["x"], gradient["x"] / divisor["x"], rtol=1e-5)


def test_a_known_curvature_needs_no_loss():
    curvature = stability.sharpness(bowl, AT, 0.0)
    for delay, criterion in ((4, "mean"), (LAW, "mean"), (LAW, "mean_square")):
        dynamics = stability.Dynamics(
            delay, momentum=0.3, modulation=dj.modulation.inverse
        )
        found = stability.predict_step_limit(
            bowl, AT, 0.0, dynamics, criterion=criterion
        )
        assert found == dynamics.step_limit(criterion) / curvature
        assert found == stability.learning_rate_limit(
            curvature, dynamics, criterion=criterion
        )


@pytest.mark.parametrize("b1", [0.0, 0.9])
def test_undelayed_adam_has_cohen_s_limit(b1):
    heavy = stability.Dynamics(0, momentum=b1)
    found = stability.learning_rate_limit(1.0, heavy) / (1 - b1)
    assert found == pytest.approx(2 * (1 + b1) / (1 - b1), rel=1e-12)


def test_where_nothing_curves_upward_no_limit_is_made_up():
    def hill(x, _):
        return -jnp.sum(x**2)

    message = "`sharpness` must be finite and positive, got "
    with pytest.raises(ValueError, match=message):
        stability.predict_step_limit(hill, jnp.ones(2), None, stability.Dynamics(3))
    for value in (0.0, -1.0):
        with pytest.raises(ValueError, match=message):
            stability.learning_rate_limit(value, stability.Dynamics(3))


def test_what_a_single_run_bears_is_the_default():
    chances = stats.geom(1 / 16, loc=-1).pmf(np.arange(500))  # 16 memoryless workers
    chances /= chances.sum()
    dynamics = stability.Dynamics(chances)
    limit = dynamics.step_limit()
    assert limit == pytest.approx(math.sqrt(2 / 16), rel=0.03)
    assert limit < math.sqrt(math.pi / 16) + 1 / 32 < 0.5
    assert limit == stability.learning_rate_limit(1.0, dynamics)
    found = stability.predict_step_limit(bowl, AT, 0.0, dynamics)
    assert found == pytest.approx(limit / 5.0, rel=1e-6)
    of_the_mean = dynamics.step_limit("mean")
    assert of_the_mean == pytest.approx(2 * (2 * 16 - 1), rel=1e-6)


def test_a_curvature_that_is_no_number_is_refused():
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"must be finite and pos.*, got {value}"):
            stability.learning_rate_limit(value, stability.Dynamics(1))
    for value in ("a", None, [1.0, 2.0]):
        with pytest.raises(TypeError, match="`sharpness` must be a number, got "):
            stability.learning_rate_limit(value, stability.Dynamics(1))


@pytest.mark.parametrize("kind", [np.float16, np.float32, jnp.float32])
def test_a_limit_is_a_float_whatever_the_curvature_is(kind):
    found = stability.learning_rate_limit(kind(3), stability.Dynamics(4))
    assert type(found) is float
    assert found == stability.Dynamics(4).step_limit() / 3


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_what_adam_divides_by_is_a_root_and_wide(dtype):
    moment = {"x": jnp.array([1.0, 2.0])}
    divisor = stability.adam_preconditioner(moment, eps=0.5, eps_root=0.25)
    np.testing.assert_allclose(divisor["x"], np.sqrt([1.25, 2.25]) + 0.5, rtol=1e-6)
    divisor = stability.adam_preconditioner(jnp.zeros(3, dtype))
    assert divisor.dtype == jnp.float32
    np.testing.assert_allclose(divisor, 1e-8)  # which is 0 in float16
