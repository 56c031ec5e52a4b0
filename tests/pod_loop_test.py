"""examples/pod_loop.py: trained on CPU devices, compiled for TPUs and GPUs."""

import functools
import importlib.util
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from experiments.pods import chips, compile_pod
from tests.support.commands import ROOT, TIMEOUT
from tests.support.extras import needs_cuda, needs_libtpu

pytestmark = pytest.mark.runs

SCRIPT = ROOT / "examples" / "pod_loop.py"
ADAM = optax.adam(1e-3)
SMALL = 64  # the script's width


@pytest.fixture(scope="module", autouse=True)
def no_tpu():
    # with libtpu, a TPU is sought otherwise, once
    jax.config.update("jax_platforms", "cpu")


@functools.cache
def script():
    spec = importlib.util.spec_from_file_location("pod_loop", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loop_has_at_most_80_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 80


def trained(folder, steps, late, devices):
    """{step: (loss, staleness)} that the command prints."""
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder), str(steps)]
    process = subprocess.run(
        [*command, str(late)],
        capture_output=True,
        text=True,
        env=os.environ
        | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        | {"JAX_NUM_CPU_DEVICES": str(devices)},
        timeout=TIMEOUT,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    lines = re.findall(r"step (\d+): loss (.+), staleness (\d)", process.stdout)
    return {int(t): (float(loss), int(age)) for t, loss, age in lines}


def by_hand(lates):
    """Losses of a loop over plain Adam that keeps a gradient back where it is late."""
    mesh = Mesh(np.reshape(jax.devices()[:1], (1, 1)), ("data", "fsdp"))
    params, state = script().begin(ADAM, mesh)
    grad, held, losses = jax.jit(jax.value_and_grad(script().loss)), None, []
    for t, late in enumerate(lates, 1):
        batch = np.random.default_rng(t).normal(size=(32, SMALL)).astype(np.float32)
        loss, fresh = grad(params, batch)
        used, held = (held, fresh) if late else (fresh, None)
        losses.append(float(loss))
        if used is not None:
            updates, state = ADAM.update(used, state, params)
            params = optax.apply_updates(params, updates)
    return losses


def test_a_run_that_moves_to_other_devices_and_rolls_back_is_the_loop_by_hand(tmp_path):
    """10 steps on 8 devices, 10 on 4, 10 without delay on 8, then late again on 2.

    At 10 the gradient in flight goes on; at 20 it is dropped; at 30 nothing is in
    flight, so a step without an update follows. A device adds in another order.
    """
    parts = [(10, 1, 8), (20, 1, 4), (30, 0, 8), (34, 1, 2)]
    printed = {}
    for steps, late, devices in parts:
        printed |= trained(tmp_path, steps, late, devices)
    assert list(printed) == list(range(1, 35))
    expected = by_hand([1] * 20 + [0] * 10 + [1] * 4)
    np.testing.assert_allclose(
        [loss for loss, _ in printed.values()], expected, atol=3e-6
    )
    ages = [0, *[1] * 19, *[0] * 10, 0, 1, 1, 1]
    assert [age for _, age in printed.values()] == ages
    # each change of `late` shows in the loss
    assert abs(by_hand([1] * 30)[-1] - expected[29]) > 1e-4


def compiled(topology, make, *, late, shards, width, rows):
    """A report of the loop's step in bfloat16; `rows` are of a device."""
    pod = chips.topology(topology).devices()
    pod = sorted(pod, key=lambda device: getattr(device, "slice_index", 0))
    mesh, here = (
        Mesh(np.reshape(devices, (shards, -1)), ("data", "fsdp"))
        for devices in (pod, jax.devices()[:shards])
    )

    def wide(x):
        sizes = [width if size == SMALL else size for size in x.shape]
        place = NamedSharding(mesh, x.sharding.spec)
        return jax.ShapeDtypeStruct(sizes, x.dtype, sharding=place)

    state = jax.tree.map(wide, script().begin(make(here), here, dtype=jnp.bfloat16))
    split = NamedSharding(mesh, P(("data", "fsdp")))
    batch = (mesh.size * rows, width)
    batch = jax.ShapeDtypeStruct(batch, jnp.bfloat16, sharding=split)
    places = jax.tree.map(lambda x: x.sharding, state)
    step = script().make_step(make(mesh), mesh, late, places)
    place = chips.topology(topology)
    return compile_pod.examine(step, (state, batch), place, program="pod_loop.py")


def late_reduce(mesh):
    return dj.exchange.late_reduce(ADAM, mesh)


LOOPS = [
    pytest.param("v5e:4x4", 4, 2048, 2048, marks=needs_libtpu),
    pytest.param("2*v5e:2x2", 2, 2048, 8192, marks=needs_libtpu),
    pytest.param("v6e:4x4", 4, 4096, 2048, marks=[needs_libtpu, pytest.mark.long]),
    pytest.param("h100:1x1x8", 4, 4096, 2048, marks=needs_cuda),
]


@pytest.mark.parametrize(("topology", "shards", "width", "rows"), LOOPS)
def test_every_late_sum_of_the_loop_is_asynchronous_and_hidden(
    topology, shards, width, rows
):
    """Four matrices of width^2 in bfloat16, of which "fsdp" leaves a device a part.

    FSDP's own gathers wait for each other as without delay.
    """
    sizes = dict(shards=shards, width=width, rows=rows)
    report = compiled(topology, late_reduce, late=1, **sizes)
    print(compile_pod.table(report))
    part = 2 * width**2 // (report.devices // shards)
    late = [
        c for c in report.collectives if (c.kind, c.num_bytes) == ("all-reduce", part)
    ]
    assert sum(c.times for c in late) == 4
    assert {c.group_size for c in late} == {shards}
    assert all(c.asynchronous and c.hidden for c in late)
    assert all(c.between_slices == ("*" in topology) for c in late)
    hidden, sending = (
        1e3 * sum(c.times * getattr(c, name) for c in late)
        for name in ("hidden_seconds", "sending_seconds")
    )
    print(f"{hidden:.3f} of {sending:.3f} ms of late sums are hidden")
    assert hidden >= 0.5 * sending


def sums(report):
    """(bytes, asynchronous) of each sum of gradients."""
    return [
        (c.num_bytes, c.asynchronous) for c in report.collectives if c.dtype != "f32"
    ]


@needs_libtpu
def test_a_history_in_pjit_compiles_to_one_sum_that_blocks_as_no_delay_does(
    monkeypatch,
):
    """`delayed(tx, 1)` and plain Adam on "data" alone, by the compiler's defaults."""
    monkeypatch.setattr(dj.exchange, "overlap_options", lambda device: {})
    sizes = dict(shards=4, width=1024, rows=1024)
    makers = (lambda mesh: ADAM), (lambda mesh: dj.delayed(ADAM, 1))
    plain, delayed = (compiled("v5e:2x2", make, late=0, **sizes) for make in makers)
    assert sums(plain) == sums(delayed) == [(4 * 2 * 1024**2, False)]
    late = compiled("v5e:2x2", late_reduce, late=1, **sizes)
    assert not any(asynchronous for _, asynchronous in sums(late))
