"""Advice agrees with closed forms, and names its assumptions."""

import math
from typing import Any

import numpy as np
import pytest

from delayjax._src.advice import advise as advising
from delayjax._src.advice.advice import Advice, Choice, Mean
from delayjax.cluster import (
    Cluster,
    Communication,
    Recorded,
    Slowdown,
    advise,
    constant,
    exponential,
    gamma,
    protocols,
)

FEW: dict[str, Any] = dict(noise=0.0, curvatures=(0.5, 1.0), seeds=2)


def one(cluster, protocol, **options: Any):
    return advise(cluster, protocols=[protocol], **FEW | options).choices[0]


@pytest.mark.parametrize("k", [1, 6, 8])
def test_seconds_of_an_update_are_those_of_order_statistics(k):
    times = exponential(2.0)
    result = one(Cluster(8, times), protocols.k_sync(k), seeds=5)
    expected = protocols.k_sync(k).update_seconds(8, times)
    assert result.seconds_per_update.mean == pytest.approx(expected, rel=0.02)
    assert result.seconds_per_gradient.mean == pytest.approx(expected / k, rel=0.02)
    assert (result.mean_staleness.mean, result.max_staleness) == (0.0, 0)
    assert result.step_limit.mean == 1.0


def test_asynchronous_workers_are_late_by_the_others_and_never_idle():
    result = one(Cluster(8, gamma(1.0, 4.0)), protocols.k_async(1), seeds=5)
    assert result.seconds_per_update.mean == pytest.approx(1 / 8, rel=0.02)
    assert result.mean_staleness.mean == pytest.approx(7, rel=0.02)
    assert result.idle_share.mean == pytest.approx(0.0, abs=0.01)


def test_the_step_limit_of_memoryless_workers():
    result = one(Cluster(16, exponential(1.0)), protocols.k_async(1), seeds=5)
    limit = math.sqrt(math.pi / 16) + 1 / 32  # eta lambda, see TraceDynamics
    low, high = result.step_limit.low, result.step_limit.high
    assert low <= limit / 2 <= high < 1.4 * low


def test_idle_shares_of_a_slow_worker():
    slow = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
    result = one(slow, protocols.hardsync())
    assert result.idle_share.mean == pytest.approx(9 / 16)
    assert result.idle_by_worker == pytest.approx([0.75, 0.75, 0.75, 0.0])


def test_the_probabilities_of_the_staleness_have_its_mean():
    result = one(Cluster(4, exponential(1.0)), protocols.k_async(1))
    ages = np.arange(len(result.staleness))
    assert result.staleness.sum() == pytest.approx(1.0)
    assert ages @ result.staleness == pytest.approx(result.mean_staleness.mean)
    assert ages[-1] <= result.max_staleness


@pytest.mark.parametrize("noise", [0.5, 4.0])
def test_the_time_to_the_target_without_delay(noise):
    """With P fresh gradients, the loss is the loss of an AR(1) process."""
    c, target = np.array([0.1, 0.3, 1.0]), 0.01
    steps, t = np.geomspace(1e-3, 1.99, 397)[:, None, None], np.arange(1, 3000)[:, None]
    keeps = (1 - steps * c) ** 2
    floor = steps**2 * noise * (c**2).mean() / 4 / (1 - keeps)
    losses = (floor + keeps**t * (1 - floor)) @ c / 2
    expected = np.argmax((losses <= target * c.sum() / 2).any(axis=0)) + 1
    result = one(
        Cluster(4, constant(2.0)), protocols.hardsync(), noise=noise, curvatures=c
    )
    assert result.seconds_to_target.mean == pytest.approx(2.0 * expected, rel=0.02)


def test_equal_workers_of_constant_times_stay_synchronous():
    advice = advise(Cluster(4, constant(1.0)), **FEW)
    first = advice.choices[0]
    assert advice.best.seconds_to_target.mean == first.seconds_to_target.mean
    assert first.seconds_to_target.mean == 2.0  # two updates, at a step of 1.28
    assert advice.verdict.startswith("Stay synchronous: hardsync() reaches the target")


def test_late_gradients_pay_where_dropping_does_not_help():
    """Two of four workers are slow: if one is dropped, the other one still delays."""
    slow = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 20.0, 20.0])
    synchronous = protocols.hardsync(), protocols.k_sync(3)
    tried = [*synchronous, protocols.k_async(1)]
    advice = advise(slow, protocols=tried, noise=0.5, seeds=2)
    first, best = advice.choices[0], advice.best
    assert best.protocol == "k_async(1)"
    assert advice.verdict.startswith("Late gradients pay: k_async(1) reaches")
    assert best.times_as_fast_as(first).mean == pytest.approx(
        first.seconds_to_target.mean / best.seconds_to_target.mean
    )


def choice(protocol, seconds, largest, shares=(0.5, 0.5)):
    one = Mean(1.0, 1.0, 1.0)
    return Choice(
        protocol, one, one, one, np.zeros(2), one, np.asarray(shares), one, largest,
        np.ones(1), one, np.asarray(seconds),
    )  # fmt: skip


def ratio_of_thirty(low):
    """Times of two seeds; 30 s is 1.2 times as long, interval low to 1.44 / low."""
    half = math.log(1.2 / low) / 12.7062  # the t quantile, one degree of freedom
    return [25 * math.exp(half), 25 * math.exp(-half)]


@pytest.mark.parametrize(
    ("late", "best", "begins"),
    [
        (
            ratio_of_thirty(1.11),
            "late",
            "Late gradients pay: late reaches the target in 25 (",
        ),
        (
            ratio_of_thirty(1.09),
            "dropping",
            "Stay synchronous: dropping reaches the target in 30 (30 to 30) s, 1.33"
            " (1.33 to 1.33) times as fast as all. late with late gradients takes 25 (",
        ),
        ([31.0, 31.0], "dropping", "About equal: dropping without late gradients"),
        ([36.0, 36.0], "dropping", "Stay synchronous: dropping reaches the target"),
    ],
)
def test_late_gradients_must_surely_be_a_tenth_faster_than_fresh_ones(
    late, best, begins
):
    rows = choice("all", [40.0, 40.0], 0), choice("dropping", [30.0, 30.0], 0)
    advice = Advice((*rows, choice("late", late, 3)), ())
    assert advice.best.protocol == best
    assert advice.verdict.startswith(begins)
    assert advice.fresh is rows[1]


@pytest.mark.parametrize("seconds", [26.2, 34.3])
def test_within_fifteen_percent_neither_is_better(seconds):
    rows = choice("all", [30.0, 30.0], 0), choice("late", [seconds] * 2, 3)
    assert Advice(rows, ()).verdict.startswith("About equal: all without late")
    assert "Train both" in Advice(rows, ()).verdict


def test_positive_means_have_positive_intervals():
    mean = Mean.of_times([1.0, 9.0])
    assert mean.mean == 5.0 and 0 < mean.low < 5 < mean.high
    assert mean.low * mean.high == pytest.approx(25.0)


def test_with_momentum_late_gradients_need_smaller_steps():
    cluster = Cluster(8, exponential(1.0))
    limits = [
        one(cluster, protocols.k_async(1), momentum=beta).step_limit.mean
        for beta in (0.0, 0.9)
    ]
    assert limits[1] < 0.3 * limits[0]


def advise_without(worker, *tried):
    """Advice for a cluster of four workers, of which this one fails after 5 s."""
    dead = Cluster(4, constant(1.0), [Slowdown(worker, math.inf, start_seconds=5.0)])
    return advise(dead, protocols=tried, **FEW)


def test_a_dead_worker_loses_the_protocols_that_wait_for_it_alone():
    hung = protocols.hardsync(), protocols.ssp(3)
    advice = advise_without(3, *hung, protocols.k_sync(3), protocols.k_async(1))
    assert advice.choices[0].seconds_to_target.mean == math.inf
    assert [choice.hangs for choice in advice.choices] == [True, True, False, False]
    assert advice.first.protocol == advice.fresh.protocol == "k_sync(3)"
    assert advice.late.protocol == "k_async(1)" and advice.dead == (3,)
    assert "hardsync() and ssp(3) wait forever for worker 3." in advice.verdict
    assert "inf" not in str(advice) and "nan" not in str(advice)
    assert advice.rows()[1] == ("hardsync()", *["-"] * 7, "never", "-")
    assert advice.rows()[3][-1] == "1 (1 to 1)"


def test_a_protocol_that_hangs_is_not_called_one_without_late_gradients():
    advice = advise_without(2, protocols.ssp(3), protocols.k_async(1))
    assert advice.fresh is None
    assert advice.verdict.startswith("k_async(1) reaches the target in ")
    assert "No protocol without late gradients reaches the target." in advice.verdict
    assert advice.verdict.endswith(" ssp(3) waits forever for worker 2.")


def test_if_every_protocol_hangs_one_sentence_says_so():
    verdict = advise_without(3, protocols.hardsync(), protocols.ssp(3)).verdict
    assert verdict == "Every protocol waits forever for worker 3: remove it."
    several = advise_without((1, 3), protocols.hardsync()).verdict
    assert several == "Every protocol waits forever for workers 1 and 3: remove them."


def test_a_protocol_that_misses_the_target_has_no_ratio():
    rows = choice("all", [math.inf, 9.0], 0), choice("late", [20.0, 20.0], 3)
    advice = Advice(rows, ())
    assert advice.first is rows[1]
    assert advice.verdict.endswith(" all never reaches the target.")
    assert "inf" not in str(advice) and "nan" not in str(advice)


def test_a_row_says_how_many_times_as_fast_as_the_first_it_is():
    rows = choice("all", [40.0, 40.0], 0), choice("dropping", [30.0, 30.0], 0)
    shown = [row[-1] for row in Advice(rows, ()).rows()]
    assert shown == ["times as fast", "1 (1 to 1)", "1.33 (1.33 to 1.33)"]


def test_the_verdict_shows_the_ratio_that_decides():
    rows = choice("all", [30.0, 30.0], 0), choice("late", ratio_of_thirty(1.098), 3)
    verdict = Advice(rows, ()).verdict
    assert (
        "It is 1.2 (1.098 to 1.311) times as fast, which is not significantly more than"
        " 1.1 times. "
    ) in verdict


@pytest.mark.parametrize("seconds", [(10.0, 10.0), (30.0, 31.0), (90.0, 90.0)])
def test_each_verdict_says_what_its_intervals_cover(seconds):
    rows = choice("all", [30.0, 30.0], 0), choice("late", seconds, 3)
    for tried in (rows, rows[:1], rows[1:]):
        verdict = Advice(tried, ()).verdict
        assert verdict.count("of the simulated times") == 1
        assert "another model changes" in verdict and "by 15% or more." in verdict


@pytest.mark.parametrize(("share", "unseen"), [(0.04, [1]), (0.06, [])])
def test_a_worker_whose_gradients_are_not_applied_is_named(share, unseen):
    """A tenth of an equal share of two workers is 0.05."""
    dropping = choice("dropping", [30.0, 30.0], 0, shares=(1 - share, share))
    assert dropping.unseen == unseen
    sentence = "dropping applies (almost) no gradients of worker 1:"
    assert (sentence in Advice((dropping,), ()).verdict) == bool(unseen)
    late = choice("late", [20.0, 20.0], 3)
    assert (sentence in Advice((dropping, late), ()).verdict) == bool(unseen)


def test_several_such_workers_are_named_together():
    dropping = choice("dropping", [30.0, 30.0], 0, shares=(1, 0, 0, 0))
    sentence = "dropping applies (almost) no gradients of workers 1, 2 and 3:"
    assert sentence in Advice((dropping,), ()).verdict


def test_what_is_used_is_neither_idle_nor_thrown_away():
    """One of four workers takes 4 s, the others 1 s."""
    slow = Cluster(4, constant(1.0), slowdown=[1.0, 1.0, 1.0, 4.0])
    waits, drops = one(slow, protocols.hardsync()), one(slow, protocols.k_sync(3))
    assert waits.used_share.mean == pytest.approx((3 * 1 + 4) / (4 * 4))
    assert waits.used_share.mean == pytest.approx(1 - waits.idle_share.mean)
    assert (drops.idle_share.mean, drops.used_share.mean) == pytest.approx((0.0, 0.75))
    assert drops.gradient_shares == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert (waits.unseen, drops.unseen) == ([], [3])


SERIAL = Communication(0.125, message_bytes=1.0, bytes_per_second=4.0, serial=True)


def test_messages_are_idle_time_and_not_used():
    """4 messages down, a task, and the last one up: 5/4 + 2 l + T seconds a round."""
    linked = Cluster(4, constant(2.0), communication=SERIAL)
    result = one(linked, protocols.hardsync())
    assert result.used_share.mean == pytest.approx(2.0 / (5 / 4 + 2 * 0.125 + 2.0))
    assert result.used_share.mean == pytest.approx(1 - result.idle_share.mean)


@pytest.mark.parametrize(
    ("protocol", "waste"),
    [(protocols.k_async(1), 0), (protocols.ssp(2), 0), (protocols.k_sync(3), 1)],
)
@pytest.mark.parametrize("link", [None, Communication(0.5), SERIAL])
def test_used_idle_and_wasted_shares_add_up_to_one(link, protocol, waste):
    """Besides tasks that are not done at the end, k_sync alone wastes time."""
    result = one(Cluster(4, exponential(1.0), communication=link), protocol)
    wasted = 1 - result.idle_share.mean - result.used_share.mean
    assert wasted > 0.02 if waste else wasted == pytest.approx(0, abs=5e-3)


def test_the_time_of_a_task_whose_gradient_is_decoded_is_wasted():
    """Half of the workers deliver in a round of 2 s, and nobody is idle."""
    slow = Cluster(4, constant(1.0), slowdown=[1.0, 9.0, 1.0, 1.0])
    result = one(slow, protocols.gradient_coding(2, 2))
    assert (result.idle_share.mean, result.used_share.mean) == pytest.approx((0, 0.5))


def test_late_protocols_alone_are_not_called_better_than_fresh_ones():
    verdict = Advice((choice("late", [20.0, 20.0], 3),), ()).verdict
    assert "No protocol without late gradients was tried." in verdict


def test_recorded_times_give_their_own_rows():
    seconds = np.random.default_rng(0).uniform(1.0, 3.0, (3, 50))
    recorded = Recorded(seconds)
    result = one(Cluster(3, recorded.service()), protocols.hardsync())
    # 1000 updates without the first tenth are whole rounds of 50 steps, except for one
    assert result.seconds_per_update.mean == pytest.approx(
        seconds.max(axis=0).mean(), rel=1e-3
    )


def test_a_target_out_of_reach_is_said(monkeypatch):
    monkeypatch.setattr(advising, "_LONGEST", 2000)
    cluster = Cluster(2, constant(1.0))

    def wasteful(server):
        server.start_all()
        for arrival in server:
            server.take(arrival)
            server.update(divisor=1e9)
            server.start(arrival.worker)

    advice = advise(cluster, protocols=[wasteful], curvatures=(1.0,), seeds=2)
    assert advice.best.seconds_to_target.mean == math.inf
    assert "take a higher target" in advice.verdict
    assert math.isnan(advice.choices[0].step_limit.mean)  # updates are not means


def test_the_table_has_a_line_for_each_protocol():
    advice = advise(Cluster(4, exponential(1.0)), **FEW)
    lines = str(advice).splitlines()
    assert lines[0] == advice.verdict
    assert advice.table() == "\n".join(lines[2 : 3 + len(advice.choices)])
    starts = [line.split("  ")[0] for line in lines[3 : 3 + len(advice.choices)]]
    assert starts == [choice.protocol for choice in advice.choices]
    assert lines[-1].startswith("Noise: a worker's gradient has 0 times")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            dict(cluster=Cluster(1, constant(1.0))),
            "`cluster` must have several",
        ),
        (dict(protocols=[]), "`protocols` must hold a protocol, got none"),
        (dict(curvatures=(1.0, 0.0)), "`curvatures` must be finite and positive"),
        (dict(curvatures=()), "`curvatures` must hold a number, got none"),
        (dict(target=1.0), "`target` must be in"),
        (dict(noise=-1.0), "`noise` must be finite and non-negative"),
        (dict(seeds=1), "`seeds` must be at least 2"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        advise(**{"cluster": Cluster(2, constant(1.0))} | options)


def test_a_service_is_no_cluster():
    with pytest.raises(TypeError, match="`cluster` must be a Cluster"):
        advise(constant(1.0))  # pyright: ignore[reportArgumentType]
