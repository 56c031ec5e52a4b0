"""Odd arguments are refused by name, before any work."""

import functools
import math
import time

import jax.numpy as jnp
import numpy as np
import pytest

from delayjax import cluster, stability

NAN, LONG = math.nan, np.full(10**5, 1e-5)
GAMMA = stability.DelayEquation(cluster.gamma(1.0, 2))
ODD = {  # where a number is asked for
    "a word": "0.5",
    "none": None,
    "complex": 0.5j,
    "a bool": True,
    "nan": NAN,
    "a row": np.array([0.5, 0.6]),
    "infinite": -math.inf,
}
bound = functools.partial(
    *(stability.error_bound, 1.0, 1.0),
    **{"k": 1, "smallest": 1.0, "largest": 1.0, "noise": 1.0, "start": 1.0},
)
# argument: the call with it
NUMBERS = {
    "step": lambda x: stability.Dynamics(3).roots(x),
    "noise": lambda x: stability.Dynamics(3).stationary_variance(0.1, noise=x),
    "momentum": lambda x: stability.Dynamics(3, momentum=x).step_limit(),
    "compensation": lambda x: stability.Dynamics(3, compensation=x).step_limit(),
    "delay": lambda x: stability.Dynamics(x).step_limit(),
    "sharpness": lambda x: stability.learning_rate_limit(x, stability.Dynamics(1)),
    "eps": lambda x: stability.adam_preconditioner(jnp.ones(2), eps=x),
    "gain": lambda x: GAMMA.decay_rate(x),
    "workers": lambda x: GAMMA.gain_limit(workers=x),
    "learning_rate": lambda x: bound(learning_rate=x),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_sound_number_is_refused_by_name(name, kind):
    with pytest.raises((TypeError, ValueError), match=f"^`{name}` must "):
        NUMBERS[name](ODD[kind])


def bowl(x, batch):
    return jnp.sum(x**2) / 2


AT = jnp.ones(2)
OTHERS = {
    "an empty momentum": ("momentum", lambda: stability.Dynamics(1, momentum="")),
    "steps in words": ("step", lambda: stability.TraceDynamics([0] * 200).growth("a")),
    "complex steps": ("step", lambda: stability.TraceDynamics([0] * 200).growth([1j])),
    "ragged": (
        "staleness",
        lambda: stability.TraceDynamics([[1], [1, 2]]),
    ),
    "seconds in words": (
        "seconds",
        lambda: stability.error_bound(*("a", 1.0), learning_rate=0.1, **bound.keywords),
    ),
    "no workers": ("workers", lambda: GAMMA.gain_limit(workers=0)),
    "a long law": ("delay", lambda: stability.Dynamics(LONG).step_limit()),
    "many roots": ("delay", lambda: stability.Dynamics(10**5).roots(1e-5)),
    "a long search": ("delay", lambda: stability.Dynamics(10**5).critical_step()),
    "a long variance": (
        "delay",
        lambda: stability.Dynamics(10**5, momentum=0.5).stationary_variance(1e-6),
    ),
    "whole moments": (
        "second_moment",
        lambda: stability.adam_preconditioner(jnp.ones(2, int)),
    ),
    "whole divisors": (
        "preconditioner",
        lambda: stability.sharpness(bowl, AT, None, preconditioner=jnp.ones(2, int)),
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_else_is_odd_is_refused_by_name_at_once(case):
    name, call = OTHERS[case]
    begin = time.process_time()
    with pytest.raises((TypeError, ValueError), match=f"^`{name}` must "):
        call()
    assert time.process_time() - begin < 2
