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


def test_a_number_that_float32_rounds_out_of_its_interval_is_refused():
    """Between 1 - 2^-24 and 1, the half rounds to 1; 0 and inf are such ends too."""
    for interval in ("[0, 1)", "(0, 1)"):
        for value in (1 - 2**-24, 1 - 2**-25 - 2**-40):
            assert checks.check_scalar("decay", value, interval) == value
        assert checks.check_number("decay", 1 - 1e-9, interval) == 1 - 1e-9
        for value in (1 - 2**-25, 1 - 1e-9, np.float64(1 - 1e-9)):
            message = rf"`decay` must be in .* got 1.0, the float32 of {value}: give"
            with pytest.raises(ValueError, match=message):
                checks.check_scalar("decay", value, interval)
    for value, rounded, interval in (
        (1e-50, "0.0", "(0, inf)"),
        (1e39, "inf", "(0, inf)"),
        (1e39, "inf", "[0, inf)"),
    ):
        with pytest.raises(ValueError, match=f"got {rounded}, the float32 of"):
            checks.check_rate("rate", value, interval)
    assert checks.check_scalar("strength", 1e-50) == 1e-50  # 0 is in it


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
