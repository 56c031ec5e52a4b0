"""No invalid call is silent or slow: each ends in the error that its row has."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests import bad_calls
from tests.bad_calls import FOLDER, written
from tests.support.commands import ROOT
from tests.support.promises import all_hold

SECONDS = 10  # the limit of the time of a call; most take some milliseconds

# runs command lines of a module in this one process, and prints their errors
DRIVER = """
import contextlib, importlib, io, json, sys
from absl import flags
from absl.testing import flagsaver
main = importlib.import_module(sys.argv[1] + ".__main__").main
errors = []
for line in json.loads(sys.argv[2]):
    with flagsaver.flagsaver(), contextlib.redirect_stdout(io.StringIO()):
        try:
            main(flags.FLAGS(line.split()))
            errors.append("no error")
        except (Exception, SystemExit) as error:
            errors.append(f"{type(error).__name__}: {error}")
print(json.dumps(errors))
"""


def rows(text):
    """{call: error} of a section; an error of several lines becomes one line."""
    errors = {}
    for line in text.strip().splitlines():
        if not line.startswith("    "):
            call = line
            assert call not in errors, f"there twice: {call}"
            errors[call] = []
        else:
            errors[call].append(line.strip())
    return {call: " ".join(lines) for call, lines in errors.items()}


SECTIONS = {
    name: rows(text)
    for name, text in vars(bad_calls).items()
    if name.isupper() and isinstance(text, str)
}
COMMANDS = SECTIONS.pop("COMMANDS")
CALLS = {call: row for section in SECTIONS.values() for call, row in section.items()}
PUBLIC = {name: getattr(bad_calls.dj, name) for name in dir(bad_calls.dj)}
NAMES = PUBLIC | vars(bad_calls)


def stop(*_):
    raise TimeoutError(f"the call does not end within {SECONDS} s")


def error_of(call):
    """The error of a call, in one line."""
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        eval(call, NAMES)
    except (Exception, SystemExit) as error:
        text = str(error)
        is_ours = text.startswith("`") and "rray(" not in text
        assert not is_ours or "\n" not in text, f"more than one line: {text}"
        return in_one_line(f"{type(error).__name__}: {text}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "no error"


def in_one_line(text):
    return " ".join(text.split())


def check(error, row):
    pattern = ".*".join(map(re.escape, row.split("...")))
    assert re.fullmatch(pattern, error), f"\n{error}\nis not what the row says:\n{row}"


def test_no_call_is_there_twice():
    assert len(CALLS) == sum(map(len, SECTIONS.values()))


@pytest.mark.parametrize("section", SECTIONS)
def test_a_bad_call_ends_at_once_in_an_error_that_says_what_is_wrong(section):
    def checked(call, row):
        return lambda: check(error_of(call), row)

    all_hold({call: checked(call, row) for call, row in SECTIONS[section].items()})


@pytest.mark.runs
@pytest.mark.parametrize("command", sorted({line.split()[0] for line in COMMANDS}))
def test_a_bad_command_line_ends_in_a_line_that_says_what_is_wrong(command):
    """One process runs all command lines of one command."""
    lines = [line for line in COMMANDS if line.split()[0] == command]
    times = [
        f"{worker},{step},{1 + worker}" for worker in range(2) for step in range(5)
    ]
    written("job.csv", "\n".join(["worker,step,seconds", *times]))
    written("no_steps.csv", "worker,seconds\n0,1.0\n")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, command, json.dumps(lines)],
        cwd=FOLDER,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    errors = json.loads(done.stdout.splitlines()[-1])
    for line, error in zip(lines, errors, strict=True):
        check(in_one_line(error), COMMANDS[line])
