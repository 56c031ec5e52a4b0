import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax._src.ground import checks


@pytest.mark.parametrize("value", [0, 3, np.int64(3), jnp.int32(3)])
def test_bounds_are_python_ints(value):
    bound = checks.check_bound("max_delay", value)
    assert type(bound) is int
    assert bound == int(value)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-1, ValueError),
        (1.0, TypeError),
        (True, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (np.array([1]), TypeError),
    ],
)
def test_bounds_that_are_none_are_named(bad, error):
    with pytest.raises(error, match=rf"`max_delay` must be .*{re.escape(repr(bad))}"):
        checks.check_bound("max_delay", bad)


def test_a_traced_bound_is_refused():
    with pytest.raises(TypeError, match="`max_delay` must be a static integer"):
        jax.jit(lambda bound: checks.check_bound("max_delay", bound))(3)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.9), jnp.float32(0.9)])
def test_numbers_in_range_pass(value):
    checks.check_number("decay", value, below=1.0)


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf, jnp.float32(np.nan)])
def test_negative_and_non_finite_numbers_are_named(bad):
    with pytest.raises(ValueError, match=f"`rate` must be finite and .*, got {bad}"):
        checks.check_number("rate", bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, 1.1, np.nan])
def test_numbers_out_of_range_are_named(bad):
    with pytest.raises(ValueError, match=rf"`decay` must be in \[0, 1.0\), got {bad}"):
        checks.check_number("decay", bad, below=1.0)


@pytest.mark.parametrize("bad", [1j, "0.5", b"0", None, [0.5], jnp.ones(2), np.ones(2)])
def test_what_is_no_number_is_named(bad):
    match = rf"`decay` must be a number, got {re.escape(repr(bad))}"
    with pytest.raises(TypeError, match=match):
        checks.check_number("decay", bad)


def test_traced_numbers_pass():
    def double(number):
        checks.check_number("decay", number)
        return 2 * number

    assert jax.jit(double)(-1.0) == -2.0


@pytest.mark.parametrize("kind", [jnp.integer, jnp.bool_])
@pytest.mark.parametrize("bad", [1.5, 1j])
def test_an_answer_of_no_such_kind_is_named(bad, kind):
    with pytest.raises(TypeError, match=r"`law\(tau\)` must be an? .*, got "):
        checks.as_scalar("law(tau)", bad, kind)


def test_an_answer_is_one_of_its_kinds():
    assert checks.as_scalar("law(tau)", 2, jnp.integer) == 2
    assert checks.as_scalar("law(tau)", True, jnp.integer, jnp.bool_)
    with pytest.raises(TypeError, match="must be an integer, got bool"):
        checks.as_scalar("law(tau)", True, jnp.integer)
    with pytest.raises(ValueError, match=r"must be a scalar, got shape \(7,\)"):
        checks.as_scalar("law(tau)", jnp.ones(7, int), jnp.integer)


@pytest.mark.parametrize("bad", [True, 1j])
def test_an_answer_that_is_no_number_is_named(bad):
    with pytest.raises(TypeError, match=r"`law\(tau\)` must be a real number, got "):
        checks.as_scalar("law(tau)", bad)
