"""Closed forms of schedules, compared with simulated timetables."""

import dataclasses
import math

import numpy as np
import pytest

from delayjax import pipelines

UPDATES = 12
SCHEDULES = [
    pipelines.gpipe(1, 4),
    pipelines.gpipe(4, 8),
    pipelines.gpipe(5, 3),
    pipelines.one_f_one_b(4, 8),
    pipelines.one_f_one_b(4, 2),  # fewer microbatches than stages
    pipelines.one_f_one_b(4, 8, chunks=2),
    pipelines.one_f_one_b(3, 6, chunks=3),
    pipelines.pipedream(1),
    pipelines.pipedream(4),
    pipelines.pipedream(8, microbatches=3),
    pipelines.pipedream(4, microbatches=4, stash=False),
    pipelines.pipedream(4, in_flight="full"),
    pipelines.pipedream(5, microbatches=2, in_flight="full"),
    pipelines.two_buffered(4, 4),
    pipelines.two_buffered(3, 7),
    pipelines.pipemare(4, 2),
]
each_schedule = pytest.mark.parametrize(
    "schedule", SCHEDULES, ids=lambda s: f"{s.name} {s.stages}, {s.microbatches}"
)


def passes(table, stage, forward):
    mine = (table.stage == stage) & (table.forward == forward)
    return zip(
        table.microbatch[mine].tolist(), table.applied[mine].tolist(), strict=True
    )


@each_schedule
def test_a_pass_reads_the_newest_version_that_its_order_leaves(schedule):
    table = pipelines.timetable(schedule, UPDATES)
    for stage in range(schedule.stages):
        for microbatch, applied in passes(table, stage, forward=True):
            version = schedule.forward_version(microbatch, stage)
            if schedule.lag:  # it exists, and is the previous version
                assert version <= applied
                assert version == max(0, microbatch // schedule.microbatches - 1)
            else:
                assert version == applied
        for microbatch, applied in passes(table, stage, forward=False):
            # an update needs M gradients, and follows the last backward pass of them
            assert applied == microbatch // schedule.microbatches
            stashed = schedule.forward_version(microbatch, stage)
            expected = stashed if schedule.stash else applied
            assert schedule.backward_version(microbatch, stage) == expected


@each_schedule
def test_a_gradient_is_late_by_the_updates_between_its_passes(schedule):
    table = pipelines.timetable(schedule, UPDATES)
    for stage in range(schedule.stages):
        reads = {i: schedule.forward_version(i, stage) for i in range(10_000)}
        late = [a - reads[i] for i, a in passes(table, stage, forward=False)]
        full = np.array(late[-schedule.microbatches :])
        np.testing.assert_array_equal(schedule.delays(stage), full)
        assert schedule.mean_delay(stage) == pytest.approx(full.mean())


@each_schedule
def test_the_copies_are_the_versions_that_are_still_needed(schedule):
    """Counted in the timetable, from a forward pass to its backward pass."""
    table = pipelines.timetable(schedule, UPDATES)
    for stage in range(schedule.stages):
        needed = 1
        if schedule.stash:
            read = dict(
                (i, schedule.forward_version(i, stage))
                for i, _ in passes(table, stage, forward=True)
            )
            held = [a - read[i] for i, a in passes(table, stage, forward=False)]
            needed = max(held) + 1
        assert schedule.weight_copies(stage) == needed


@each_schedule
def test_so_many_microbatches_are_in_flight(schedule):
    table = pipelines.timetable(schedule, UPDATES)
    for stage in range(schedule.stages):
        most = table.in_flight(stage) / schedule.chunks
        assert schedule.activations(stage) == most
        memory = schedule.memory(stage, weights=10.0, activations=3.0)
        assert memory == 10.0 * schedule.weight_copies(stage) + 3.0 * most


@each_schedule
@pytest.mark.parametrize("backward", [1.0, 2.0])
def test_a_stage_is_idle_for_the_bubble(schedule, backward):
    shares = []
    for updates in (UPDATES, 2 * UPDATES):
        table = pipelines.timetable(schedule, updates, backward=backward)
        shares.append(table.end.max())
    period = (shares[1] - shares[0]) / UPDATES  # without filling and draining
    busy = schedule.microbatches * (1.0 + backward)
    assert schedule.bubble_share == pytest.approx(1 - busy / period)


def test_published_numbers():
    """P.1 and P.3: delays W, 1, 2W/M; GPipe's bubble; interleaving divides it by v."""
    for stages in (2, 4, 8):
        after = np.arange(stages)[::-1]
        stashed = pipelines.pipedream(stages)
        assert [stashed.mean_delay(s) for s in range(stages)] == after.tolist()
        assert [stashed.weight_copies(s) for s in range(stages)] == (after + 1).tolist()
        both = pipelines.pipedream(stages, in_flight="full")
        assert [both.activations(s) for s in range(stages)] == (2 * after + 1).tolist()
        mare = pipelines.pipemare(stages, 4)
        assert [mare.mean_delay(s) for s in range(stages)] == (2 * after / 4).tolist()
        buffered = pipelines.two_buffered(stages, stages)
        assert {buffered.mean_delay(s) for s in range(stages)} == {1.0}
        assert {buffered.weight_copies(s) for s in range(stages)} == {2}
        throttled = pipelines.pipedream(stages, microbatches=3)
        assert [throttled.weight_copies(s) for s in range(stages)] == [
            math.ceil(w / 3) + 1 for w in after
        ]
        size = 2 * stages
        ratios = [
            schedule.bubble_share / (1 - schedule.bubble_share)
            for schedule in (
                pipelines.gpipe(stages, size),
                pipelines.one_f_one_b(stages, size),
                pipelines.one_f_one_b(stages, size, chunks=4),
            )
        ]
        ideal = (stages - 1) / size
        assert ratios == pytest.approx([ideal, ideal, ideal / 4])
        kept = pipelines.one_f_one_b(stages, size, chunks=4).activations(0)
        assert kept == stages + (stages - 1) / 4  # S (1 + (S - 1)/(S v))


def test_with_a_lag_so_many_passes_ahead_still_find_their_version():
    """With a lag above M, a pass would begin before its version exists."""
    for lag, ahead in ((1, 4), (2, 8)):
        schedule = pipelines.Schedule("own", 2, 4, False, (ahead, 1), lag=lag)
        table = pipelines.timetable(schedule, UPDATES)
        for microbatch, applied in passes(table, 0, forward=True):
            version = schedule.forward_version(microbatch, 0)
            assert applied - lag < version <= applied
        with pytest.raises(
            ValueError, match=f"`ahead` must be at most lag M = {4 * lag}, got"
        ):
            dataclasses.replace(schedule, ahead=(ahead + 1, 1))


@each_schedule
def test_passes_come_in_the_order_of_their_starts_and_then_by_stage(schedule):
    table = pipelines.timetable(schedule, UPDATES)
    places = list(zip(table.start.tolist(), table.stage.tolist(), strict=True))
    assert places == sorted(places)


def test_a_dependency_is_never_early():
    table = pipelines.timetable(pipelines.pipedream(4), 6)
    ends = {
        (bool(f), int(s), int(i)): e
        for f, s, i, e in zip(
            table.forward, table.stage, table.microbatch, table.end, strict=True
        )
    }
    for f, s, i, start in zip(
        table.forward, table.stage, table.microbatch, table.start, strict=True
    ):
        before = (True, s - 1, i) if f else (False, s + 1, i)
        if before in ends:
            assert ends[before] <= start
        if not f and s == 3:
            assert ends[True, 3, i] <= start


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipelines.gpipe(0, 1), "`stages` must be at least 1, got 0"),
        (
            lambda: pipelines.pipedream(2, microbatches=0),
            "`microbatches` must be at least 1",
        ),
        (lambda: pipelines.two_buffered(4, 3), "must be at least the 4 stages, got 3"),
        (
            lambda: pipelines.one_f_one_b(4, 6, chunks=2),
            r"`microbatches` must be a multiple of 4, got 6\.",
        ),
        (
            lambda: pipelines.pipedream(2, in_flight="half"),
            '`in_flight` must be "throttled" or "full", got',
        ),
        (
            lambda: dataclasses.replace(pipelines.pipedream(3), ahead=(1, 0)),
            r"`ahead` must be 3 non-negative numbers, got \(1, 0\)\.",
        ),
        (
            lambda: dataclasses.replace(pipelines.pipedream(3), microbatches=0),
            "`microbatches` must be at least 1, got 0",
        ),
        (
            lambda: dataclasses.replace(pipelines.gpipe(2, 2), chunks=0),
            "`chunks` must be at least 1, got 0",
        ),
        (
            lambda: dataclasses.replace(pipelines.two_buffered(3, 3), stash=False),
            r"`lag` must be 0 with a flush or without a stash, got 1\.",
        ),
        (
            lambda: dataclasses.replace(pipelines.two_buffered(3, 3), flush=True),
            r"`lag` must be 0 with a flush or without a stash, got 1\.",
        ),
        (
            lambda: dataclasses.replace(pipelines.two_buffered(4, 4), microbatches=2),
            r"`ahead` must be at most lag M = 2, got \(3, 2, 1, 0\)\.",
        ),
        (
            lambda: dataclasses.replace(pipelines.pipedream(1), lag=-1),
            r"`lag` must be at least 0, got -1\.",
        ),
        (
            lambda: pipelines.timetable(
                dataclasses.replace(
                    pipelines.one_f_one_b(2, 4, chunks=2), ahead=(0, 0)
                ),
                1,
            ),
            "waits for another",
        ),
    ],
)
def test_what_no_pipeline_has_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("stage", [-1, 2])
@pytest.mark.parametrize("make", [pipelines.gpipe, pipelines.two_buffered])
def test_a_stage_that_is_not_there_has_no_delay_and_no_memory(make, stage):
    schedule = make(2, 2)
    for ask in (schedule.delays, schedule.weight_copies, schedule.activations):
        with pytest.raises(ValueError, match=r"`stage` must .*, got"):
            ask(stage)
