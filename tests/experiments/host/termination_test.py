import signal
import subprocess
import sys

import pytest

from experiments.host.termination import Termination

SIGNALS = (signal.SIGTERM, signal.SIGINT)
COMPILES = """
import hashlib
from experiments.host.termination import Termination
with Termination():
    print("compiles", flush=True)
    # minutes in which no handler in Python runs, as while XLA compiles
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


def send(number):
    signal.raise_signal(number)  # handled here, whatever thread the system would choose


@pytest.mark.runs
def test_sigterm_ends_a_process_that_compiles_before_it_is_done():
    command = [sys.executable, "-c", COMPILES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "compiles\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=10) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_where_a_state_is_to_be_saved(number):
    with Termination() as termination:
        for _ in range(2):  # each chunk begins
            termination.begin()
        send(number)
        assert termination.requested == number.name
        with pytest.raises(KeyboardInterrupt):  # asked twice
            send(number)


def test_ctrl_c_before_the_first_chunk_has_nothing_to_save():
    with Termination() as termination:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert not termination.requested


def test_afterwards_signals_go_where_they_went():
    before = [signal.getsignal(number) for number in SIGNALS]
    with Termination() as termination:
        assert before == [signal.getsignal(number) for number in SIGNALS]
        termination.begin()
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert before == [signal.getsignal(number) for number in SIGNALS]
