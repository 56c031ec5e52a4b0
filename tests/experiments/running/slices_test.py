"""Groups of workers, and devices in several slices."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import on_devices, optimizer, tasks
from experiments.pods import chips
from experiments.running import cells, execution, meshes
from experiments.running.trainer import Trainer
from tests.eight import slices
from tests.eight.slices import RATE, UPDATES
from tests.support.cases import shortened
from tests.support.extras import needs_libtpu
from tests.support.training_runs import program_of

pytestmark = pytest.mark.runs

KINDS = {"simulated": optimizer, "devices": on_devices}
# (workers, groups); there are four devices
CASES = [
    (kind, *shape)
    for kind in KINDS
    for shape in [(4, 2), (8, 2), (8, 4), (8, 8), (16, 8), (4, 4), (2, 2)]
]
FEW = [("simulated", 8, 4), ("devices", 4, 2), ("devices", 8, 4)]


AXES = "groups", "members"


def start():
    return np.ones(slices.INPUTS)


@pytest.mark.parametrize(("kind", "workers", "groups"), shortened(CASES, *FEW))
def test_between_groups_a_gradient_is_one_update_late(kind, workers, groups):
    """x[t + 1] = x[t] - rate * mean over groups of (mean over members of g[t - 1])."""
    state = slices.trained(KINDS[kind], slices.two_levels, workers, groups)
    x, held = start(), None
    for t in range(UPDATES):
        fresh = slices.of_groups(x, t, workers, groups)
        if held is not None:
            x = x - RATE * held.mean(0)
        held = fresh
    np.testing.assert_allclose(slices.params_of(state), x, rtol=0, atol=1e-6)
    # a group sends the mean of its members, and not each gradient
    outbox = np.asarray(execution.held(state).memory.outbox)
    np.testing.assert_allclose(outbox[:, 0, 0], held, rtol=0, atol=1e-5)
    counted = cells.counters(state)
    np.testing.assert_array_equal(counted.staleness_counts, [[[0, UPDATES - 1]]])


@pytest.mark.parametrize(("groups", "axes"), [(1, "workers"), (2, AXES)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_worker_draws_numbers_of_its_own_and_all_report_one_loss(
    kind, groups, axes
):
    """The number of a worker is group * members + member; states are averaged."""

    def loss(params, batch, state, key):
        drawn = jax.random.normal(key, (3,)) * batch.mean()
        return params @ drawn + batch.mean(), batch.mean()

    def batches(seed, start, stop):
        return np.float32(np.arange(4)[None] + 10 * np.arange(start, stop)[:, None])

    task = tasks.Task(
        init=lambda key: (jnp.zeros(3), jnp.zeros(())),
        loss=loss,
        batches=batches,
        evaluate=lambda params, state: {"train_loss": params.sum()},
    )
    program = program_of(
        KINDS[kind](
            lambda: dj.exchange.mean(optax.sgd(1.0), axis_name=axes),
            workers=4,
            groups=groups,
        ),
        **dict(task=task, seeds=(7,), updates=2, evaluations=1, grid={}),
    )
    trainer = Trainer(program)
    state, chunk = trainer.run_chunk(trainer.init(), trainer.feed.given(0, 2), 2)
    chunk, _ = trainer.chunk_report(state, chunk)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 7), 1)
    drawn = [
        (worker + 10 * step)
        * jax.random.normal(
            jax.random.fold_in(jax.random.fold_in(key, step), worker), (3,)
        )
        for step in range(2)
        for worker in range(4)
    ]
    first, second = np.reshape(drawn, (2, 4, 3)).mean(1)
    np.testing.assert_allclose(chunk.loss[0], [[1.5]])
    np.testing.assert_allclose(chunk.loss[1], [[11.5 - first @ second]], rtol=1e-5)
    held = execution.held(state).model
    np.testing.assert_allclose(held.state, [[11.5]])
    np.testing.assert_allclose(held.params[0, 0], -first - second, rtol=1e-5)


def test_one_worker_needs_no_axis_on_devices_either():
    trained = [
        slices.trained(kind, lambda: optax.sgd(RATE), 1, 1) for kind in KINDS.values()
    ]
    x = start()
    for t in range(UPDATES):
        x = x - RATE * slices.gradients(x, t, 1)[0]
    for state in trained:
        np.testing.assert_allclose(slices.params_of(state), x, rtol=0, atol=1e-6)


class Device:
    """The attributes of a device that meshes use."""

    device_kind = "none"

    def __init__(self, number, slice_index=None, process_index=0, platform="cpu"):
        self.id, self.process_index, self.platform = number, process_index, platform
        if slice_index is not None:
            self.slice_index = slice_index


def groups_of(groups, members):
    return {"groups": groups, "members": members}


def of_slices(*sizes):
    """Devices in slices of these sizes, numbered in a random order."""
    slices = [index for index, size in enumerate(sizes) for _ in range(size)]
    order = np.random.default_rng(0).permutation(slices)
    return [Device(number, int(index)) for number, index in enumerate(order)]


def slices_in(mesh):
    return np.vectorize(lambda device: device.slice_index)(mesh.devices)


@pytest.mark.parametrize(
    ("sizes", "axes", "expected"),  # the slices along the mesh
    [
        ((4, 4), groups_of(2, 4), [[0] * 4, [1] * 4]),
        ((4, 4), groups_of(2, 8), [[0] * 4, [1] * 4]),  # two workers on a device
        ((4, 4), groups_of(4, 2), [[0] * 2, [0] * 2, [1] * 2, [1] * 2]),
        ((4, 4), groups_of(8, 2), [[0]] * 4 + [[1]] * 4),
        ((2, 2, 2, 2), groups_of(2, 4), [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ((3, 3, 3), groups_of(3, 3), [[0] * 3, [1] * 3, [2] * 3]),
        ((4, 4), {"workers": 8}, [0] * 4 + [1] * 4),
        ((4, 4), {"workers": 24}, [0] * 4 + [1] * 4),
        ((4, 4), {"workers": 4}, [0] * 4),  # no more slices than necessary
        ((4, 4), groups_of(6, 4), [[0] * 4, [1] * 4]),  # three groups in a slice
    ],
)
def test_slices_lie_along_the_first_axis(sizes, axes, expected):
    mesh = meshes.make_mesh(axes, there=of_slices(*sizes))
    assert mesh.axis_names == tuple(axes)
    np.testing.assert_array_equal(slices_in(mesh), expected)
    assert len(set(mesh.devices.flat)) == np.size(expected)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_without_slices_groups_are_whole_processes(platform):
    """An axis that is the only one follows the order of the devices."""
    devices = [Device(i, process_index=i % 2, platform=platform) for i in range(4)]
    mesh = meshes.make_mesh(groups_of(2, 2), there=devices)
    result = np.vectorize(lambda device: device.process_index)(mesh.devices)
    np.testing.assert_array_equal(result, [[0, 0], [1, 1]])
    line = meshes.make_mesh({"workers": 4}, there=devices)
    assert [device.id for device in line.devices.flat] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("axes", "devices", "message"),
    [
        # slices and processes of different sizes
        ({"workers": 6}, of_slices(4, 2), "Number of devices 4 must equal the product"),
        (
            groups_of(2, 3),
            [Device(i, process_index=i // 4) for i in range(6)],
            "Number of devices 4 must equal the product",
        ),
        (
            groups_of(2, 6),
            of_slices(4, 4, 4),
            "`groups=2` must be a multiple of the 3 slices, or divide them: a group",
        ),
        (
            groups_of(4, 6),
            of_slices(*[2] * 6),
            "`groups=4` must be a multiple of the 6 slices",
        ),
        (
            groups_of(2, 3),
            [Device(i, process_index=i) for i in range(3)],
            "`groups=2` must be a multiple of the 3 processes",
        ),
        (
            groups_of(2, 5),
            of_slices(4, 4),
            "`workers=10` must be a multiple of the 8 devices",
        ),
    ],
)
def test_groups_that_do_not_fit_the_devices_are_refused(axes, devices, message):
    with pytest.raises(ValueError, match=message):
        meshes.make_mesh(axes, there=devices)


@pytest.mark.parametrize(
    ("workers", "groups", "message"),
    [
        (4, 3, "`groups` must divide `workers=4`, got 3"),
        (4, 0, "`groups` must divide `workers=4`, got 0"),
        (1, 2, "`groups` must divide `workers=1`, got 2"),
    ],
)
@pytest.mark.parametrize("kind", KINDS.values())
def test_groups_that_do_not_divide_the_workers_are_refused(
    kind, workers, groups, message
):
    with pytest.raises(ValueError, match=message):
        kind(slices.two_levels, workers=workers, groups=groups)


def over_workers(rate=RATE):
    return dj.exchange.mean(optax.sgd(rate))


@pytest.mark.parametrize(
    ("make", "workers", "groups", "message"),
    [
        (over_workers, 4, 2, "its workers have 'groups' and 'members'. Set"),
        (slices.two_levels, 4, 1, "its workers have 'workers'. Set"),
        (over_workers, 1, 1, "its workers have none. Set"),
    ],
)
@pytest.mark.parametrize("grid", [{}, {"rate": (0.1, 0.2)}])
def test_a_mean_over_an_axis_that_is_not_there_is_refused(
    make, workers, groups, message, grid
):
    made = make
    if grid:

        def made(rate):
            return optax.chain(optax.scale(rate), make())

    training = optimizer(made, workers=workers, groups=groups)
    with pytest.raises(ValueError, match=message) as error:
        program_of(training, task=slices.task(8), grid=grid)
    assert "\n" not in str(error.value)


def test_a_name_that_python_does_not_know_is_no_axis():
    def make():
        return dj.exchange.mean(unknown)  # noqa: F821

    with pytest.raises(ValueError, match="name 'unknown' is not defined"):
        program_of(optimizer(make, workers=4), task=slices.task(8), grid={})


def test_a_mean_within_groups_alone_is_refused():
    def make():
        return dj.exchange.mean(optax.sgd(RATE), axis_name="members")

    program = program_of(
        optimizer(make, workers=4, groups=2), task=slices.task(8), grid={}
    )
    with pytest.raises(ValueError, match="would drift apart"):
        Trainer(program).init()


@pytest.fixture
def two_slices():
    """TPUs to compile for: two slices of four."""
    jax.config.update("jax_platforms", "cpu")  # otherwise JAX looks for a TPU
    return chips.topology("2*v5e:2x2").devices()


@needs_libtpu
def test_tpus_of_two_slices_lie_slice_after_slice(two_slices):
    assert sorted({device.slice_index for device in two_slices}) == [0, 1]
    for axes in (groups_of(2, 4), {"workers": 8}, groups_of(4, 2)):
        mesh = meshes.make_mesh(axes, there=two_slices[::-1])
        np.testing.assert_array_equal(np.ravel(slices_in(mesh)), [0] * 4 + [1] * 4)
        assert mesh.devices.shape == tuple(axes.values())
        # neighbors in the ring of a slice are neighbors here
        ring = mesh.devices.reshape(2, 4)
        for one, other in zip(ring[:, :-1].flat, ring[:, 1:].flat, strict=True):
            assert np.abs(np.subtract(one.coords, other.coords)).sum() == 1


def products_before(text, awaited):
    """Products of a compiled loop: in all, and before each line of this operation.

    A computation is a list of lines in the order in which they are run.
    """
    computations, name = {}, None
    for line in text.splitlines():
        if begun := re.match(r"^(?:ENTRY )?%([\w.\-]+) .*\{$", line):
            name = begun[1]
            computations[name] = []
        elif line == "}":
            name = None
        elif name:
            computations[name].append(line)

    @functools.cache
    def products(name):
        return sum(map(of_line, computations.get(name, ())))

    def of_line(line):
        called = re.findall(r"calls=%([\w.\-]+)", line)
        count = re.search(r" (convolution|dot)\(", line) is not None
        return count + sum(map(products, called))

    (body,) = (c for c in computations.values() if any(awaited in x for x in c))
    done = np.cumsum([of_line(line) for line in body])
    return done[-1], [done[i] for i, line in enumerate(body) if awaited in line]


@needs_libtpu
@pytest.mark.long
def test_what_slices_send_each_other_is_awaited_after_all_products(two_slices):
    """XLA would fuse the cast of a gathered row of parameters into the update."""
    width, rows = 256, 512

    def loss(params, batch):
        y, *layers = (layer.astype(jnp.bfloat16) for layer in params)
        y = y[batch]
        for layer in layers:
            y = jnp.tanh(y @ layer)
        return jnp.mean(jnp.square(y.astype(jnp.float32)))

    def batches(seed, start, stop, part=slice(None)):
        return np.zeros((stop - start, 8 * rows), np.int32)[:, part]

    task = tasks.Task(
        init=lambda key: [jnp.zeros((width, width))] * 3,
        loss=loss,
        batches=batches,
        evaluate=lambda params: {"train_loss": params[0][0, 0]},
        examples=8 * rows,
    )

    def make():
        late = dj.exchange.overlapped_mean(optax.adam(RATE), axis_name="groups")
        return dj.exchange.mean(late, axis_name="members")

    program = program_of(
        on_devices(make, workers=8, groups=2), task=task, seeds=(0,), grid={}
    )
    trainer = Trainer(program, devices=two_slices)
    arguments = trainer.shapes(), *trainer.feed.shapes()
    text = trainer.run_chunk.lower(*arguments).compile().as_text()
    products, before = products_before(text, " recv-done(")
    assert products >= 6  # two layers, forward and backward
    assert before and set(before) == {products}
    products, before = products_before(text, " recv(")
    assert 0 in before
