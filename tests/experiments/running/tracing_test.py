"""What a function cannot do with an unknown number is no mistake; all else is one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import Experiment, tasks
from experiments.running.programs import programs


def made(training, grid=None):
    return programs(
        Experiment(
            question="?",
            task=tasks.quadratic(),
            training=training,
            grid=grid or {"rate": (0.1, 0.2)},
            updates=2,
        )
    )


def of_a_table(rate):
    return {0.1: optax.sgd(0.1), 0.2: optax.adam(0.2)}[rate]


def of_a_choice(rate):
    return optax.sgd(rate) if rate < 0.15 else optax.adam(rate)


def of_a_shape(rate):
    return optax.sgd(jnp.zeros(int(10 * rate)).sum() + rate)


def of_a_mask(rate):
    few = np.arange(3.0) < 10 * rate
    return optax.sgd(0.1 * jnp.ones(3)[few].sum())


def of_a_method(rate):
    return optax.sgd(0.1 if rate.is_integer() else 0.2)


def refused_in_words(rate):
    if isinstance(rate, jax.core.Tracer):
        raise ValueError("a number, please")
    return optax.sgd(rate)


@pytest.mark.parametrize(
    "training",
    [of_a_table, of_a_choice, of_a_shape, of_a_mask, of_a_method, refused_in_words],
)
def test_what_needs_a_number_is_a_program_for_each_value(training):
    assert [program.size for program in made(training)] == [1, 1]


@pytest.mark.parametrize("error", [KeyError, ZeroDivisionError, NotImplementedError])
def test_any_other_error_is_the_user_s_own_and_is_said(error):
    def training(rate):
        if isinstance(rate, jax.core.Tracer):
            raise error("why")
        return optax.sgd(rate)

    with pytest.raises(ValueError, match=rf"with rate=0\.1 fails: .*{error.__name__}"):
        made(training)


def refused(grid):
    def training(rate, decay):
        known = not any(isinstance(x, jax.core.Tracer) for x in (rate, decay))
        if known and (total := float(rate) + float(decay)) >= 1.0:
            raise ValueError(f"the sum is {total:.2f}")
        return optax.sgd(rate, decay)

    with pytest.raises(ValueError, match="the sum is") as error:
        made(training, grid=grid)
    return str(error.value)


def test_a_value_is_blamed_with_the_values_beside_it():
    """No axis is blamed for the first values, which fail before any is varied."""
    assert refused({"rate": (0.1, 0.2), "decay": (1.0, 0.0)}) == (
        "`grid` must not have rate=0.1, decay=1.0 (the first values): the sum is 1.10"
    )
    assert refused({"rate": (0.1, 0.2), "decay": (0.5, 0.95)}) == (
        "`grid['decay']` must not have 0.95 with rate=0.1: the sum is 1.05"
    )
    assert refused({"rate": (0.1, 0.6), "decay": (0.5, 0.0)}) == (
        "`grid['rate']` must not have 0.6 with decay=0.5: the sum is 1.10"
    )
