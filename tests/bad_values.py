"""Values that an argument of some kind can never take, for `fuzz_test`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")

# nothing that is asked for: no number, function, array, name or transformation
ODD = (None, object(), {"a": 1}, "2", b"2")
NO_NUMBER = (*ODD, "1.0", 1j, [1.0], (), np.ones(2), jnp.ones((2, 3)), int)


def finite(kind):
    """A kind of which infinity is a good value."""
    return kind.filter(lambda value: not (isinstance(value, float) and value == INF))


NO_FUNCTION = (*ODD, 3, 1.5, [len], np.ones(2), True)


def some(*values):
    return st.sampled_from(values)


def number(*, low=None, high=None, least=None, most=None):
    """No finite number in the interval: (low, high), or with the ends [least, most].

    Nothing above if neither `high` nor `most` is given.
    """
    bad = [some(NAN, INF, -INF, *NO_NUMBER)]
    if low is not None:
        bad += [st.floats(max_value=low), st.integers(max_value=math.floor(low))]
    if least is not None:
        bad += [
            st.floats(max_value=least, exclude_max=True),
            st.integers(max_value=int(least) - 1),
        ]
    if high is not None:
        bad += [st.floats(min_value=high), st.integers(min_value=math.ceil(high))]
    if most is not None:
        bad += [
            st.floats(min_value=most, exclude_min=True),
            st.integers(min_value=int(most) + 1),
        ]
    return st.one_of(*bad)


def integer(least, most=None):
    """No static integer in [least, most]."""
    bad = [
        st.integers(max_value=least - 1),
        st.floats(),  # whole ones as well
        some(True, np.True_, jnp.ones(2, jnp.int32), *NO_NUMBER),
    ]
    if most is not None:
        bad.append(st.integers(min_value=most + 1))
    return st.one_of(*bad)


non_negative = number(least=0.0)
positive = number(low=0.0)
share = number(least=0.0, high=1.0)  # [0, 1)
up_to_one = number(least=0.0, most=1.0)
fraction = number(low=0.0, most=1.0)  # (0, 1]
real = number()
bound = integer(0)
count = integer(1)
seed = integer(0)


def function(*answers):
    """No function, or one that takes anything and answers nonsense."""
    return some(*NO_FUNCTION, *(saying(answer) for answer in answers))


def answers(*nonsense):
    """Functions alone, where a number may stand for one."""
    return some(*map(saying, nonsense))


def saying(answer):
    def nonsense(*args, **options):
        return answer

    nonsense.__qualname__ = f"saying({answer!r})"
    return nonsense


key = some(*ODD, 3, 1.5, np.ones(2), jnp.ones(3), [0, 1], jax.random.PRNGKey)
axes = some(None, 3, "", (), [], ["workers"], ("a", "a"), ("a", 1), b"workers", 1.5)
transformation = some(
    *ODD, 3, optax.sgd, (1, 2), [optax.sgd(0.1)], lambda grads: grads, np.ones(2)
)
no_storage = some(object(), "bfloat16", jnp.bfloat16, 3, [], optax.sgd(0.1))


def choice(*good):
    return st.text(max_size=6).filter(lambda s: s not in good) | some(
        3, True, object(), (), good, good[0].upper(), good[0] + " "
    )


# delays of `delayed`
delay = st.one_of(
    st.integers(max_value=-1),
    st.floats(max_value=0.0, exclude_max=True),
    some(NAN, INF, "2", 1j, object(), np.ones(2, int), jnp.float32(NAN), b"2"),
)
wrong_answers = (NAN, -1, "2", None, 1j, np.ones(2), object())

numbers = some(  # of a vector of numbers that are not negative
    *ODD, 3.0, 1j, [], [-1.0, 2.0], [NAN, 1.0], ["a", "b"], [1j, 2.0], [[]], [None]
)
integers = some(*ODD, 3.5, 1j, [], [-1, 2], [0.5, 1.0], [NAN], ["a"], [True, False])
table = some(  # [T, P] of seconds
    *ODD, 3.0, [], [1.0, 2.0], [[]], [["a", "b"]], [[1j, 2.0]], [[NAN, 1.0]], np.ones(8)
)
