"""The time left of a run is by what its updates have taken so far."""

import pytest

from experiments.host import progress

ROW = {"train_loss": 1.0, "losses": [[1.0]], "not_finite": 0, "updates_per_second": 1.0}


@pytest.fixture
def clock(monkeypatch):
    """Time passes where a test sleeps; nothing compiles by JAX's account."""
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.time, "sleep", sleep)


def left(caplog):
    """The time left that the last line says."""
    return caplog.messages[-1].rpartition(", ")[2]


def minutes(seconds):
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s left"


def trained(meter, step, seconds):
    """Updates up to `step` have taken so long."""
    progress.time.sleep(seconds)
    meter.update(ROW | {"step": step}, progress.working())


def test_the_time_left_is_by_seconds_an_update_and_by_the_run_s_average(clock, caplog):
    """Each program compiles for 10 s; its updates take 1 s, then 2 s each."""
    caplog.set_level("INFO", logger=progress.log.name)
    meter = progress.Meter([100, 100, 50])
    with meter.program("first"):
        progress.time.sleep(10)
        meter.begin(40)
        trained(meter, 50, seconds=10)
        # in 20 s 10 updates: those of later programs take 2 s each
        assert left(caplog) == minutes(50 * 1 + 150 * 2)
        trained(meter, 100, seconds=50)
    with meter.program("second"):
        progress.time.sleep(10)
        meter.begin(60)
        trained(meter, 70, seconds=20)
        assert left(caplog) == minutes(30 * 2 + 50 * (70 + 30) / (60 + 10))


def test_a_program_that_was_done_before_takes_no_time(clock, caplog):
    caplog.set_level("INFO", logger=progress.log.name)
    meter = progress.Meter([100, 100])
    with meter.program("done"):
        progress.time.sleep(1000)
        meter.begin(100)
    with meter.program("program"):
        meter.begin(0)
        trained(meter, 50, seconds=50)
    assert left(caplog) == "50 s left"


def test_lines_are_5_s_apart_but_the_last_one_is_said_at_once(clock, caplog):
    caplog.set_level("INFO", logger=progress.log.name)
    meter = progress.Meter([100])
    with meter.program("program"):
        meter.begin(0)
        for step, seconds in ((10, 6), (20, 4), (30, 4), (90, 4), (100, 0.5)):
            trained(meter, step, seconds)
    said = [text.split("update ")[1].split("/")[0] for text in caplog.messages[2:]]
    assert said == ["10", "30", "100"]


def test_a_search_says_its_rounds_its_trainings_and_the_most_time_left(clock, caplog):
    caplog.set_level("INFO", logger=progress.log.name)
    meter = progress.SearchMeter("all", 20_000)
    assert caplog.messages[-1] == "searching all: at most 20,000 trainings"
    meter.begin_round()
    meter.update(1200, 0)  # of an earlier call, which took no time
    progress.time.sleep(4)
    meter.update(2, 2)
    assert len(caplog.messages) == 1
    meter.begin_round()
    progress.time.sleep(8)
    meter.update(10, 4)
    # 6 trainings in 12 s
    line = f"round 2, 1,212 of at most 20,000 trainings, at most {2 * 18_788 // 3600} h"
    assert caplog.messages[-1].startswith(f"searching all: {line}")
