"""Several processes on one machine, each with its own devices."""

import json
import random
import re
import signal
import sys
import time
from pathlib import Path

import jax
import pytest

from benchmarks import kill
from experiments import Run
from experiments.host import processes
from tests.support.cases import shortened

pytestmark = pytest.mark.runs

UPDATES = ("--config.updates=200", "--checkpoint_every=10")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled):
    """A run of two processes without interruption, and the output of each."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    codes, outputs = kill.finish(kill.start(f"--workdir={workdir}", *UPDATES, compiled))
    assert codes == [0, 0], outputs
    return workdir, outputs


def test_the_first_process_alone_writes_and_reports(tmp_path):
    workdir = tmp_path / "run"
    few = "--config.updates=20", "--config.delay=(4,)"
    codes, outputs = kill.finish(kill.start(f"--workdir={workdir}", *few))
    assert codes == [0, 0], outputs
    first, second = outputs
    assert "report:" in first and "updates 0 to 20" in first
    (line,) = re.findall(r"^\d\d:\d\d:\d\d .*", second, re.MULTILINE)
    assert "joining the other processes" in line
    assert len(kill.rows(workdir)) == 3  # two, and one before the training
    assert len(list(workdir.glob("tensorboard/*/events*"))) == 1


@pytest.mark.long
def test_a_killed_peer_ends_the_other_and_the_run_ends_as_if_it_had_not_been(
    whole, tmp_path, compiled
):
    workdir = tmp_path / "run"
    folder = Path(compiled.partition("=")[2])
    rng = random.Random(0)
    for victim in (1, 0):
        # after update 40, when the checkpoints of 10 and 20 have been written
        killed = kill.kill_once(
            (*UPDATES, compiled), workdir, (victim,), rng, training=0.0, least=4
        )
        # the timeout is 10 s; a busy machine takes longer to write its last lines
        assert killed is not None and killed.survived_seconds < 20
    programs = {path.name for path in folder.glob("*-cache")}
    codes, outputs = kill.finish(kill.start(f"--workdir={workdir}", *UPDATES, compiled))
    assert codes == [0, 0], outputs
    assert "resumes at update" in outputs[0]
    kill.check_same(whole[0], workdir)
    assert json.loads((workdir / "run.json").read_text())["wall_seconds"] > 0
    assert programs and {path.name for path in folder.glob("*-cache")} == programs


@pytest.mark.long
def test_a_run_goes_on_with_other_processes_and_devices(whole, tmp_path, compiled):
    # two processes with two devices, then of two and one, then two with one
    workdir = tmp_path / "run"
    arguments = (f"--workdir={workdir}", *UPDATES, compiled)
    first = kill.start(*arguments)
    assert kill.wait_for_rows(workdir, 3, first)
    first[1].send_signal(signal.SIGTERM)
    codes, outputs = kill.finish(first)
    assert codes == [143, 143], outputs
    assert "stopped by a signal to another process, saved at" in outputs[0]
    second = kill.start(*arguments, processes=1)
    assert kill.wait_for_rows(workdir, len(kill.rows(workdir)) + 2, second)
    second[0].send_signal(signal.SIGTERM)
    codes, outputs = kill.finish(second)
    assert codes == [143] and "resumes at update" in outputs[0], outputs
    codes, outputs = kill.finish(kill.start(*arguments, devices=1))
    assert codes == [0, 0] and "resumes at update" in outputs[0], outputs
    result, expected = (Run.read(run).results for run in (workdir, whole[0]))
    # The sum over workers has another order: a rounding of float32, 6e-8, in each
    # update; and Adam divides by the size of the gradients.
    losses = expected["train_loss"].tolist()
    assert result["train_loss"].tolist() == pytest.approx(losses, rel=1e-4)
    assert result["staleness_mean"].tolist() == expected["staleness_mean"].tolist()
    steps = [row["step"] for row in kill.rows(workdir)]
    assert steps == list(range(0, 201, 10))


def test_different_flags_are_refused_by_all_with_the_names(tmp_path):
    started = kill.start(
        f"--workdir={tmp_path / 'a'}",
        of_last=("--config.width=16", f"--workdir={tmp_path / 'b'}"),
    )
    codes, outputs = kill.finish(started)
    assert codes == [1, 1]
    errors = [line for line in outputs[0].splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: the processes were given different values: --config.width: 8 in process"
        f" 0, 16 in process 1; --workdir: {tmp_path}/a in process 0, {tmp_path}/b in"
        " process 1. Start the same command on every host."
    ]
    assert errors[0] in outputs[1]


@pytest.mark.long
def test_another_run_in_the_folder_ends_all_processes_at_once(whole, compiled):
    arguments = f"--workdir={whole[0]}", *UPDATES, compiled, "--config.width=16"
    began = time.monotonic()
    codes, outputs = kill.finish(kill.start(*arguments, timeout_seconds=200))
    assert codes == [1, 1], outputs
    assert "holds another run" in outputs[0]
    assert "error: process 0 stops, and says why" in outputs[1]
    assert time.monotonic() - began < 100


FULL = {  # the file that has no space -> (the config, the files of the run)
    "search.csv": ("search", ("search.csv", "optima.csv", "results.csv")),
    "metrics.jsonl": ("devices", ("curves.csv", "results.csv")),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FULL)
def test_a_disk_that_is_full_for_the_first_process_ends_all_at_once(
    name, tmp_path, compiled, monkeypatch
):
    """The others would wait in a collective. Afterwards, the same command continues."""
    question, left = FULL[name]
    few = "--config.updates=40", "--config.delay=(0,)", "--config.seeds=1", compiled
    options = dict(config=f"tests/support/full_disk.py:{question}", timeout_seconds=200)

    def run(place):
        started = kill.start(f"--workdir={tmp_path / place}", *few, **options)
        return kill.finish(started)

    assert run("whole")[0] == [0, 0]
    monkeypatch.setenv("FULL_DISK", f"{name},3")
    began = time.monotonic()
    codes, outputs = run("cut")
    assert codes == [1, 1] and time.monotonic() - began < 100
    last = [output.strip().splitlines()[-1] for output in outputs]
    assert last[0].startswith(f"error: the disk of {tmp_path / 'cut'} is full: make ro")
    assert last[1] == "error: process 0 stops, and says why."
    assert not any("Traceback" in output for output in outputs)
    full, cut = ((tmp_path / place / name).read_text() for place in ("whole", "cut"))
    assert 0 < cut.count("\n") < full.count("\n")
    monkeypatch.delenv("FULL_DISK")
    codes, outputs = run("cut")
    assert codes == [0, 0], outputs
    for file in left:
        whole, cut = (tmp_path / place / file for place in ("whole", "cut"))
        assert cut.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("process_id", shortened((1, 0), 1))
def test_a_process_that_waits_in_vain_for_the_others_ends(tmp_path, process_id):
    started = kill.start(f"--workdir={tmp_path}", timeout_seconds=2)
    started[1 - process_id].kill()
    codes, outputs = kill.finish(started, timeout=60)
    assert codes[process_id] not in (0, -signal.SIGKILL)
    assert (
        "if one is missing after --timeout_seconds=2, JAX aborts"
        in (outputs[process_id])
    )


def join(coordinator, process_id):
    processes.join(
        coordinator=coordinator,
        num_processes=2,
        process_id=process_id,
        timeout_seconds=1,
    )


def test_what_jax_refuses_is_one_line_with_the_remedy(monkeypatch):
    def refuse(*arguments, **options):
        raise RuntimeError("UNKNOWN: Failed\nto start RPC server")  # the port is in use

    monkeypatch.setattr(jax.distributed, "initialize", refuse)
    message = "^--distributed: UNKNOWN: Failed to start RPC server Start the same"
    with pytest.raises(ValueError, match=message):
        join("localhost:9000", 0)


NO_PORTS = ("alpha", "alpha:", "alpha:655360", "alpha:65536", "alpha:99999", "alpha:0")


@pytest.mark.parametrize("coordinator", NO_PORTS)
def test_a_coordinator_without_a_port_is_refused(coordinator, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", None)  # this would wait forever
    message = f"must be HOST:PORT, with a port of 1 .. 65535, got '{coordinator}'"
    with pytest.raises(ValueError, match=message):
        join(coordinator, 1)


def test_an_error_ends_a_process_at_once_after_its_traceback(monkeypatch, capsys):
    """A regular exit would wait for the others, who wait for this process."""
    codes = []
    monkeypatch.setattr(processes.os, "_exit", codes.append)
    monkeypatch.setattr(sys, "excepthook", None)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: None)
    join("localhost:9000", 0)
    error = jax.errors.JaxRuntimeError("Gloo all-reduce failed")
    sys.excepthook(type(error), error, None)
    text = capsys.readouterr().err
    assert text.splitlines()[-1].endswith("JaxRuntimeError: Gloo all-reduce failed")
    assert codes == [1]


def test_what_fails_in_another_process_fails_here(monkeypatch):
    monkeypatch.setattr(processes, "_of_each", lambda flag: [[flag], [True], [True]])
    with pytest.raises(ValueError, match="process 1, 2 stops, and says why"):
        processes.together(lambda: "done")
    with pytest.raises(OSError, match="full"):
        processes.together(lambda: (_ for _ in ()).throw(OSError("full")))


def test_a_flag_of_one_process_is_a_flag_of_all(monkeypatch):
    flags = [[False, False, True], [False, True, True]]
    monkeypatch.setattr(processes, "_of_each", lambda *flag_values: flags)
    assert processes.any_of(False, False, True) == [False, True, True]


def test_what_all_do_is_returned():
    assert processes.together(lambda: "done") == "done"
