"""What the tables of refused arguments, and the fuzz, do not ask of the checks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from delayjax._src.ground import checks


def test_bounds_are_python_ints():
    for value in (0, 3, np.int64(3), jnp.int32(3)):
        bound = checks.check_bound("max_delay", value)
        assert type(bound) is int
        assert bound == int(value)


def test_numbers_in_range_and_traced_ones_pass():
    for value in (0, 0.5, np.float32(0.9), jnp.float32(0.9)):
        assert checks.check_number("decay", value, "[0, 1)") == value
    with pytest.raises(ValueError, match=r"`decay` must be in \[0, 1\), got 1.0"):
        checks.check_number("decay", 1.0, "[0, 1)")
    with pytest.raises(TypeError, match="`decay` must be a number, got True"):
        checks.check_number("decay", True)  # a flag in the place of a number
    assert jax.jit(lambda x: 2 * checks.check_number("decay", x))(-1.0) == -2.0


def test_an_answer_is_one_of_its_kinds():
    assert checks.as_scalar("law(tau)", 2, jnp.integer) == 2
    assert checks.as_scalar("law(tau)", True, jnp.integer, jnp.bool_)
    for kinds, bad, rule in (
        ([jnp.integer], True, "an integer, got bool"),
        ([jnp.integer], 1.5, "an integer, got float32"),
        ([jnp.bool_], 1j, "a bool, got complex64"),
        ([], True, "a real number, got bool"),
        ([], 1j, "a real number, got complex64"),
    ):
        with pytest.raises(TypeError, match=rf"`law\(tau\)` must be {rule}"):
            checks.as_scalar("law(tau)", bad, *kinds)
    with pytest.raises(ValueError, match=r"must be a scalar, got shape \(7,\)"):
        checks.as_scalar("law(tau)", jnp.ones(7, int), jnp.integer)
