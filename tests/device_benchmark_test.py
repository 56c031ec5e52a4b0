"""The measurements of the benchmark on a device, and the tables that it writes."""

import json
import os
import subprocess
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from benchmarks import device, device_overlap, history, memory, overlap
from benchmarks.side_by_side import Contender, medians
from benchmarks.tables import NotMeasuredError, Table, not_measured
from tests.support.commands import ROOT

pytestmark = pytest.mark.runs

SEVERAL = 5  # steps
CONFIG: Any = jax.config  # without types, as its flags have none

# A program of several steps


def test_a_program_of_several_steps_takes_them_all():
    """x[t + 1] = a x[t] + b, so x[T] = a^T x[0] + b (1 + a + ... + a^(T - 1))."""
    a, b, start = 0.5, 1.0, 3.0
    one, several = (
        Contender(lambda x, a, b: a * x + b, *map(jnp.asarray, (start, a, b)), steps=n)
        for n in (1, SEVERAL)
    )
    medians({"one": one, "several": several}, rounds=1, warmup=0)
    for actual, steps in ((one, 1), (several, SEVERAL)):
        expected = a**steps * start + b * sum(a**t for t in range(steps))
        np.testing.assert_allclose(actual.state, expected, rtol=1e-6)


def test_the_time_is_that_of_one_step(monkeypatch):
    clock = iter([0.0, 2.0])
    fake = types.SimpleNamespace(perf_counter=lambda: next(clock))
    contender = Contender(jnp.negative, jnp.ones(2), steps=4)
    monkeypatch.setattr("benchmarks.side_by_side.time", fake)
    assert contender.seconds() == 2.0 / 4


def test_nothing_is_moved_out_of_the_loop_of_steps():
    """Not even a sum that is equal in all steps."""
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))

    def step(state):
        x, term = state
        return x + jax.lax.psum(term, "workers"), term

    specs = P(), P("workers")
    both = jax.shard_map(step, mesh=mesh, in_specs=(specs,), out_specs=specs)
    state = jnp.zeros(1), jnp.ones(4)
    actual = str(Contender(both, state, steps=SEVERAL).program.as_text())
    loop, main = actual.split("ENTRY")
    assert " all-reduce(" in loop and " while(" in main
    assert " all-reduce(" not in main


@pytest.mark.parametrize("steps", [1, SEVERAL])
def test_traffic_and_memory_are_those_of_one_step(steps):
    size, delay = 2**14, 2
    actual = history.delayed(delay, jnp.ones(size), steps).compiled
    moved = 3 + 2  # in and out: parameters; in: the gradient; a slot written, one read
    accessed = actual.cost_analysis()["bytes accessed"]
    assert abs(accessed / (4 * size) - moved) < 0.01
    held = 1 + (delay + 1) + 1  # parameters, slots, gradient
    arguments = actual.memory_analysis().argument_size_in_bytes
    assert abs(arguments / (4 * size) - held) < 0.01


# Formulas


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_ring_sends_each_part_of_an_array_twice_but_for_one(devices):
    size, sent = 2**20, 0.0
    for _ in ("parts are summed", "sums are passed on"):
        for _ in range(devices - 1):  # rounds
            sent += size / devices
    assert device_overlap.sent_bytes(size, devices) == sent


@pytest.mark.parametrize(
    ("compute", "communication", "overlapped", "expected"),
    [
        (3.0, 2.0, 5.0, 0.0),  # computing and sending one after the other
        (3.0, 2.0, 3.0, 1.0),  # as long as the longer one
        (3.0, 2.0, 4.0, 0.5),
        (2.0, 2.0, 9.0, 0.0),  # slower than one after the other
        (2.0, 2.0, 1.0, 1.0),  # noise of the clock
    ],
)
def test_hidden_is_what_the_shorter_saves(compute, communication, overlapped, expected):
    assert device_overlap.hidden(compute, communication, overlapped) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("cpu", "cpu"), ("AMD MI300X (gfx942)", "amd-mi300x-gfx942")],
)
def test_a_card_is_a_name_of_a_file(kind, expected):
    assert device.slug(kind) == expected


def card(monkeypatch, platform, stats):
    fake = types.SimpleNamespace(platform=platform, memory_stats=lambda: stats)
    monkeypatch.setattr(history.jax, "devices", lambda: [fake])


@pytest.mark.parametrize("gigabytes", [8, 16, 40])
@pytest.mark.parametrize("delays", [(1, 4, 16, 64), (64,), (60, 62, 64)])
def test_histories_fit_into_the_memory_of_the_card(monkeypatch, delays, gigabytes):
    limit = gigabytes * 10**9
    card(monkeypatch, "gpu", {"bytes_limit": limit})
    gradient = 4 * history.size_that_fits(delays)
    slots = [depth + 1 for depth in delays]
    # the first table: for each delay, a history and its limit, with their parameters
    total = sum(2 * (held + 1) for held in slots)
    assert total * gradient < limit / 1.2
    # the second: a history, and two by hand that copy it at each step
    assert (3 * max(slots) + max(slots)) * gradient < limit / 1.2
    assert max(total, 4 * max(slots)) * gradient > limit / 3  # most of it is used


@pytest.mark.parametrize(
    ("platform", "stats", "expected"),
    [
        ("cpu", None, 10_000_000),
        ("cpu", {"bytes_limit": 10**12}, 10_000_000),
        ("gpu", {"bytes_limit": 10**12}, 50_000_000),
        ("tpu", None, 10_000_000),
    ],
)
def test_the_size_of_a_history_by_platform(monkeypatch, platform, stats, expected):
    card(monkeypatch, platform, stats)
    assert history.size_that_fits(history.DELAYS) == expected


# Rows


def test_a_table_shows_its_columns_in_their_formats():
    table = Table("", {"n": "{:,}", "ms": "{:.1f} x"}, [{"n": 1234, "ms": 2.34}, {}])
    *_, first, second = table.markdown()
    assert (first, second) == ("| 1,234 | 2.3 x |", "| - | - |")


def test_an_error_is_one_line_of_a_table():
    error = RuntimeError("RESOURCE_EXHAUSTED: 3 | 4\n\nlong story")
    message = "not measured: RuntimeError: RESOURCE_EXHAUSTED: 3 / 4"
    assert not_measured(error) == message
    assert not_measured(NotMeasuredError("one device")) == "not measured: one device"
    assert not_measured(ValueError()) == "not measured: ValueError: "


def tables_of(actual):
    """Tables after a round trip through `json`, which must not change them."""
    assert actual and not [one for one in actual if isinstance(one, str)], actual
    return [Table(**one) for one in actual]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The results of each part, in this process, with the sizes of a quick run."""
    folder, actual = tmp_path_factory.mktemp("parts"), {}

    def part(name):
        if name not in actual:
            device.work(name, True, folder / f"{name}.json")
            actual[name] = json.loads((folder / f"{name}.json").read_text())
        return actual[name]

    return part


COUNTS = {  # rows of each table
    "history": (2, 2),
    "training": (1, 1),
    "memory": (3 * 2,),
    "replicas": (4,),  # three methods, and no method
    "overlap": (1, 1),
}


@pytest.mark.parametrize("part", device.PARTS)
def test_a_part_measures_all_of_its_columns(quick, part):
    actual = tables_of(quick(part))
    assert tuple(len([*table.rows]) for table in actual) == COUNTS[part]
    for table in actual:
        for row in table.rows:
            names = set(table.columns) & set(row)
            missing = set(table.columns) - names
            # only some methods have peers and limits
            assert not missing or part == "replicas", missing
            numbers = [row[name] for name in names if not isinstance(row[name], str)]
            assert numbers and np.all(np.isfinite(numbers)), row
            assert min(numbers) >= 0, row


def test_a_history_needs_what_its_formula_says(quick):
    (table,) = tables_of(quick("memory"))
    clocks = 100  # bytes: counters, and for each slot an age and a loss
    for row in table.rows:
        numbers = (row["delay"] + 1) * device.SMALL
        size = numbers * {"ring.cast(bfloat16)": 2}.get(row["history"], 4)
        assert row["formula MiB"] * 2**20 == size
        counted = row["compiled, device MiB"] + row["compiled, host MiB"]
        assert size < counted * 2**20 < size + clocks
        assert row["temporary MiB"] * 2**20 < clocks * 20
        assert row["in use MiB"] == "not measured"  # of a CPU, JAX does not know it


def test_a_history_that_cannot_be_is_one_row(monkeypatch):
    def missing():
        raise ValueError("no memory of kind pinned_host\n...")

    kinds = {**memory.KINDS, "ring.on_host": memory.Kind(missing, 4)}
    monkeypatch.setattr(memory, "KINDS", kinds)
    *others, last = memory.rows(128, (1,))
    assert last["compiled, device MiB"] == (
        "not measured: ValueError: no memory of kind pinned_host"
    )
    assert [row["history"] for row in others] == ["float32", "ring.cast(bfloat16)"]
    assert all(row["compiled, device MiB"] > 0 for row in others)


def test_an_overlap_is_made_of_the_times_beside_it(quick):
    devices, (bandwidth, hidden) = 4, tables_of(quick("overlap"))
    (row,) = bandwidth.rows
    moved = 2 * (devices - 1) / devices * row["MiB"] * 2**20
    np.testing.assert_allclose(row["GB/s a device"], moved / (1e6 * row["ms"]))
    (row,) = hidden.rows
    compute, communication = row["compute ms"], row["communication ms"]
    saved = compute + communication - row["overlapped ms"]
    expected = np.clip(saved / min(compute, communication), 0, 1)
    np.testing.assert_allclose(row["hidden"], expected)
    for step in ("synchronous", "overlapped"):
        longer = max(compute, communication)
        np.testing.assert_allclose(row[f"{step} / max"], row[f"{step} ms"] / longer)


def test_a_sum_is_of_all_devices():
    mesh = device_overlap.all_devices()
    contender = device_overlap.all_reduce(mesh, 64, SEVERAL)
    rows = np.arange(4.0)[:, None] * np.ones(16)
    contender.state = device_overlap.placed(mesh, rows.astype(np.float32))
    contender.seconds()
    np.testing.assert_allclose(contender.state, rows.mean() * np.ones_like(rows))


def test_one_device_has_nothing_to_overlap(monkeypatch):
    monkeypatch.setattr(device_overlap.jax, "devices", lambda: ["one"])
    with pytest.raises(NotMeasuredError, match=r"^one device$"):
        device_overlap.all_devices()


# Processes


def files_in(folder, name):
    text = (folder / f"{name}.md").read_text()
    return json.loads((folder / f"{name}.json").read_text()), text


COMMAND = """
import sys
import jax
from benchmarks import device
sys.argv[1:] = "--quick --parts memory --out".split() + sys.argv[1:]
device.main()
jax.config.update("jax_num_cpu_devices", 2)  # refused where a device was taken
"""


def test_the_command_writes_both_files_and_takes_no_device_itself(tmp_path):
    folder = tmp_path / "new"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, str(folder)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(os.listdir(folder)) == ["cpu-quick.json", "cpu-quick.md"]
    result, page = files_in(folder, "cpu-quick")
    assert result["machine"]["device"] == "cpu" and result["quick"]
    assert list(result["parts"]) == ["memory"]
    (table,) = tables_of(result["parts"]["memory"])
    assert (len([*table.rows]),) == COUNTS["memory"]
    assert page == device.page(result)
    assert table.caption in done.stdout


MACHINE = {
    "date": "2026-11-24",
    "jax": "0.10.2",
    "python": "3.11.7",
    "devices": 1,
    "device": "Card 1",
    "processor": "x86_64",
    "cores": 2,
}
FOUND = Table("Of nothing.", {"n": "{:,}", "ms": "{:.2f}"}, [{"n": 1234, "ms": 0.125}])
SPEAK = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); "
ENDS = {
    "history": "",
    "training": "import time; time.sleep(60)",
    "memory": "sys.exit(3)",
    "replicas": "import os; os.kill(os.getpid(), 9)",
}
REASONS = {
    "history": [],
    "training": ["not measured: it took more than 2 s"],
    "memory": ["not measured: its process ended with exit code 3"],
    "replicas": ["not measured: its process ended with exit code -9"],
}


def test_a_part_that_fails_leaves_the_others_and_what_it_had(monkeypatch, tmp_path):
    def command(part, file, quick):
        assert not quick
        actual = [MACHINE] if part == device.CARD else [FOUND.as_json()]
        program = SPEAK + ENDS.get(part, "")
        return [sys.executable, "-Sc", program, str(file), json.dumps(actual)]

    monkeypatch.setattr(device, "command", command)
    monkeypatch.setattr(device, "LIMIT", 2.0)
    device.run(ENDS, False, tmp_path)
    result, page = files_in(tmp_path, "card-1")
    assert result["machine"] == MACHINE
    kept = [json.loads(json.dumps(FOUND.as_json()))]
    assert result["parts"] == {part: kept + REASONS[part] for part in ENDS}
    heading, *sections = page.split("\n## ")
    for name in ("date", "jax", "device", "devices"):
        assert str(MACHINE[name]) in heading
    for text, (part, reasons) in zip(sections, REASONS.items(), strict=True):
        assert text.splitlines()[0] == part.capitalize()
        assert "| 1,234 | 0.12 |" in text and FOUND.caption in text
        assert all(reason in text.splitlines() for reason in reasons)


def test_a_part_that_raises_says_why_and_keeps_its_first_table(monkeypatch, tmp_path):
    def broken(quick):
        assert quick
        yield FOUND
        raise MemoryError("out of memory\nand so on")

    monkeypatch.setattr(device, "PARTS", {"history": broken})
    device.work("history", True, tmp_path / "part")
    assert json.loads((tmp_path / "part").read_text()) == [
        json.loads(json.dumps(FOUND.as_json())),
        "not measured: MemoryError: out of memory",
    ]


def test_without_a_device_it_ends_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(
        device, "in_a_process", lambda *_: [not_measured(OSError("no"))]
    )
    with pytest.raises(SystemExit, match=r"^No device: not measured: OSError: no$"):
        device.run(device.PARTS, True, tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--parts", "speed"], "argument --parts: invalid choice: 'speed'"),
        (["--part", "history"], "unrecognized arguments: --part history"),
        (["--out=FILE"], "argument --out: must be a folder, or a new one: "),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    monkeypatch, capsys, tmp_path, flags, message
):
    def run(*_):
        raise AssertionError("work has begun")

    file = tmp_path / "file"
    file.touch()
    given = [flag.replace("FILE", str(file)) for flag in flags]
    monkeypatch.setattr(device, "run", run)
    monkeypatch.setattr(sys, "argv", ["device", *given])
    with pytest.raises(SystemExit) as ended:
        device.main()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    (line,) = (printed.out + printed.err).splitlines()
    assert line.startswith(message)


# Two processes on a slow link


@pytest.mark.parametrize("flags", [[], ["--rank=0"]], ids=["parent", "process"])
def test_the_processes_of_a_slow_link_leave_accelerators_alone(monkeypatch, flags):
    seen, before = [], CONFIG.jax_platforms

    def see(result):
        return lambda *_: seen.append(CONFIG.jax_platforms) or result

    monkeypatch.setattr(overlap, "heading", see(""))
    monkeypatch.setattr(overlap, "run_pair", see([]))
    monkeypatch.setattr(overlap, "work", see(None))
    monkeypatch.setattr(sys, "argv", ["overlap", *flags])
    jax.config.update("jax_platforms", "tpu,cpu")
    try:
        overlap.main()
    finally:
        jax.config.update("jax_platforms", before)
    assert seen and set(seen) == {"cpu"}
