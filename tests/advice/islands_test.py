"""The periods of islands agree with the closed forms of equal steps."""

import math

import numpy as np
import pytest

from delayjax.cluster import (
    Cluster,
    Communication,
    Islands,
    Slowdown,
    advise,
    constant,
    protocols,
)

STEP = 0.5  # seconds


def islands(link, workers=2, **options):
    return Cluster(workers, constant(STEP), communication=link, **options)


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("latency", [0.0, 0.03])
def test_equal_steps_have_the_periods_and_delays_of_the_closed_form(workers, latency):
    """Recursive halving: an all-reduce of 1 / F of the bytes takes

        c(F) = 2 log2(P) latency + 2 (1 - 1/P) bytes / (F rate)

    and H >= c(1) .95 / (.05 s),    c(F d) <= s / .95.
    """
    link = Communication(latency, message_bytes=2e9, bytes_per_second=1.25e9)
    numbers = Islands.from_cluster(islands(link, workers))
    waits = 2 * math.log2(workers) * latency
    sends = 2 * (1 - 1 / workers) * 2e9 / 1.25e9

    def delay(fragments):
        return math.ceil(sends / (STEP / 0.95 - waits) / fragments)

    assert numbers is not None
    assert numbers.exchange_seconds == pytest.approx(waits + sends)
    assert numbers.period == math.ceil((waits + sends) * 0.95 / (0.05 * STEP))
    assert (numbers.delay, numbers.fragment_delay) == (delay(1), delay(4))


def test_a_latency_above_a_step_has_a_period_and_no_delay():
    """c = 2 * .9 s at every number of slices; H >= 1.8 * .95 / (.05 * .5) = 68.4."""
    numbers = Islands.from_cluster(islands(Communication(latency_seconds=0.9)))
    assert numbers == (pytest.approx(1.8), 69, None, None)
    assert "from H = 69 steps on. With a delay islands wait" in str(numbers)


def test_a_link_too_slow_for_any_period_has_none():
    numbers = Islands.from_cluster(islands(Communication(latency_seconds=1e6)))
    assert numbers == (pytest.approx(2e6), None, None, None)
    assert "costs over 5% of the time at any H" in str(numbers)


def test_times_that_cannot_be_true_are_refused_and_are_no_costly_link():
    def never(rng, worker):
        while True:
            yield np.full(100, np.nan)

    link = Communication(latency_seconds=0.1)
    with pytest.raises(ValueError, match="nan"):
        Islands.from_cluster(Cluster(2, never, communication=link))
    dead = islands(link, slowdown=[Slowdown(0, math.inf)])
    assert Islands.from_cluster(dead) is None


def test_advice_has_the_islands_of_its_cluster_if_messages_take_time():
    link = Communication(0.03, message_bytes=2e9, bytes_per_second=1.25e9)
    few = dict(protocols=[protocols.hardsync()], noise=0.0, seeds=2)
    advice = advise(islands(link), **few)
    assert advice.islands == Islands.from_cluster(islands(link))
    assert str(advice.islands) in str(advice).splitlines()
    assert advise(islands(None), **few).islands is None


def test_a_step_that_depends_on_the_time_of_day_has_no_period():
    slow = [Slowdown(0, 4.0, stop_seconds=100.0)]
    link = Communication(latency_seconds=0.1)
    assert Islands.from_cluster(islands(link, slowdown=slow)) is None
    lasting = Islands.from_cluster(islands(link, slowdown=[1.0, 4.0]))
    assert lasting is not None and lasting.period == 2  # .2 .95 / (.05 * 2) = 1.9
