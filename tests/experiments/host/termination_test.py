import hashlib
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from experiments.host import processes
from experiments.host.termination import Termination
from tests.support.cases import shortened


@pytest.fixture
def ended(monkeypatch):
    """How this process would have been ended at once: codes, and a moment of it."""
    done = SimpleNamespace(codes=[], event=threading.Event(), moment=0.0)

    def end_at_once(code):
        done.codes.append(code)
        done.moment = time.monotonic()
        done.event.set()

    monkeypatch.setattr(processes, "end_at_once", end_at_once)
    return done


def send(number):
    os.kill(os.getpid(), number)


def in_c():
    """A second in which no handler in Python runs, as while XLA compiles."""
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)


def test_sigterm_ends_a_process_that_compiles_before_it_is_done(ended, caplog):
    with (
        caplog.at_level("WARNING", logger="experiments"),
        Termination() as termination,
    ):
        timer = threading.Timer(0.1, send, [signal.SIGTERM])
        timer.start()
        in_c()
        compiled = time.monotonic()
        assert ended.event.wait(10)
        assert termination.requested == "SIGTERM"
    assert ended.codes == [143] and ended.moment < compiled
    assert "stopped by SIGTERM before the first update" in caplog.text
    assert "nothing was lost" in caplog.text


@pytest.mark.parametrize(
    ("number", "trains"),
    shortened(
        [(signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGINT, False)],
        *((signal.SIGTERM, True), (signal.SIGINT, False)),
    ),
)
def test_a_signal_is_noted_where_a_state_is_to_be_saved(ended, number, trains):
    with Termination() as termination:
        termination.trains = trains
        send(number)
        assert termination.requested == number.name
        with pytest.raises(KeyboardInterrupt):  # asked twice
            send(number)
    assert not ended.codes


def test_afterwards_signals_go_where_they_went_and_no_thread_is_left():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with Termination():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert before == [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)
    ]
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
