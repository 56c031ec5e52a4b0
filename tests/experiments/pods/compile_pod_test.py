"""Compiles steps for TPUs and GPUs that this machine lacks; and the error messages."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from configs import tokens_pod
from experiments import Arm, Experiment, Simulation, along, on_devices, tasks
from experiments.pods import chips, compile_pod
from tests.support.commands import finish
from tests.support.extras import needs_cuda, needs_libtpu

pytestmark = pytest.mark.runs

SMALL = "v5e:2x2"
WIDTH, ROWS, LAYERS, CAPACITY = 256, 1024, 3, 5
MATRIX = 4 * WIDTH**2  # bytes


def mesh_of(topology):
    devices = chips.topology(topology).devices()
    return jax.make_mesh(
        (len(devices),), ("workers",), axis_types=(AxisType.Auto,), devices=devices
    )


def shape(mesh, spec, *sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))


def examined(step, arguments, topology=SMALL, options=None):
    place = chips.topology(topology)
    if options is None:
        options = dj.exchange.overlap_options(place.devices()[0])
    jitted = jax.jit(step, donate_argnums=0, compiler_options=options)
    return compile_pod.examine(jitted, arguments, place)


def perceptron(params, x):
    y = x
    for layer in params:
        y = jnp.tanh(y @ layer)
    return jnp.mean(jnp.square(y.astype(jnp.float32)))


def trained(tx, *, layers=1, width, rows, topology, dtype=jnp.float32):
    """A compiled step of a perceptron, without the runner; `rows` are each worker's."""

    def step(state, x):
        params, opt_state = state
        grads = jax.grad(perceptron)(dj.workers.vary(params), x)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    mesh = mesh_of(topology)
    workers = dj.workers.run(step, mesh)
    x = shape(mesh, P("workers"), mesh.size, rows, width, dtype=dtype)

    def begin():
        params = [jnp.zeros((width, width), dtype)] * layers
        return workers.init((params, tx.init(params)), x)

    split = jax.eval_shape(begin)
    placed = split.shardings(mesh)
    state = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=sharding
        ),
        split,
        placed,
    )
    return examined(workers.step, (state, x), topology)


def gradients(report, *, hidden):
    """Bytes of the sums that are hidden (or not hidden); sums of one number are out."""
    sums = [c for c in report.collectives if c.num_bytes > 8 and c.hidden == hidden]
    return sum(c.num_bytes * c.times for c in sums)


@needs_libtpu
@pytest.mark.parametrize(
    "optimizer", [optax.sgd(0.01), optax.adam(0.001)], ids=["sgd", "adam"]
)
def test_a_perceptron_s_late_sums_are_hidden_at_no_more_bytes(optimizer):
    """4 layers of 4096^2, 4096 rows a device, bfloat16; v5e:4x4.

    All late sums are hidden. The fresh sum of the first layer begins after all
    products. It runs beside the updates of the other layers and makes them longer: by
    more than half of the time that it takes to send it.
    """
    width = 4096

    def by(exchange):
        return trained(
            exchange(optimizer),
            **dict(layers=4, width=width, rows=4096, topology="v5e:4x4"),
            dtype=jnp.bfloat16,
        )

    fresh, late = by(dj.exchange.mean), by(dj.exchange.overlapped_mean)
    layer = 2 * width**2
    assert gradients(late, hidden=True) == 4 * layer
    assert gradients(late, hidden=False) == 0
    sums = [c for c in fresh.collectives if c.num_bytes == layer]
    costly = [c for c in sums if c.waiting_seconds > 0.5 * c.sending_seconds]
    assert (len(sums), len(costly)) == (4, 1)
    assert all(c.waiting_seconds == 0 for c in late.collectives if c.num_bytes == layer)
    # one more gradient is written and read; a tenth for bytes that XLA counts twice
    assert late.bytes_accessed <= 1.1 * (fresh.bytes_accessed + 2 * 4 * layer)


@needs_libtpu
@pytest.mark.parametrize("form", ["for each shard", "unreduced"])
def test_in_plain_jit_a_gradient_that_is_reduced_late_hides(form):
    """2 layers of 2048^2, 2048 rows a device, bfloat16, Adam; v5e:4x4.

    On Auto axes each shard has a gradient; on Explicit axes the type of the gradient is
    unreduced. In both cases only the late sum is sent, and it is hidden completely.
    """
    layers, width, rows = 2, 2048, 2048
    kind = {"for each shard": AxisType.Auto, "unreduced": AxisType.Explicit}[form]
    pod = chips.topology("v5e:4x4").devices()
    mesh = jax.make_mesh((len(pod),), ("data",), axis_types=(kind,), devices=pod)
    tx = dj.exchange.late_reduce(optax.adam(0.001), mesh)

    def gradient(params, x):
        if form == "for each shard":
            parts = x.reshape(mesh.size, rows, width)
            return jax.vmap(jax.grad(perceptron), (None, 0))(params, parts)
        reduced = NamedSharding(mesh, P(reduced={"data"}))
        return jax.grad(perceptron)(jax.sharding.reshard(params, reduced), x)

    def step(state, x):
        params, opt_state = state
        updates, opt_state = tx.update(gradient(params, x), opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    def on_mesh(tree, spec):
        return jax.tree.map(
            lambda leaf: shape(mesh, spec, *leaf.shape, dtype=leaf.dtype), tree
        )

    params = [shape(mesh, P(), width, width, dtype=jnp.bfloat16)] * layers
    opt_state = jax.eval_shape(tx.init, params)
    outbox = on_mesh(opt_state.outbox, P("data"))
    state = params, on_mesh(opt_state, P())._replace(outbox=outbox)
    x = shape(mesh, P("data"), mesh.size * rows, width, dtype=jnp.bfloat16)
    report = examined(step, (state, x), "v5e:4x4")
    assert [c for c in report.collectives if not c.asynchronous] == []
    assert {c.kind for c in report.collectives} == {"all-reduce"}
    assert sum(c.num_bytes for c in report.collectives) == layers * 2 * width**2
    # the new state takes the donated buffers; scalars take a tile each
    assert report.output_bytes <= 8192


@functools.cache
def char_lm(exchange, workers=16, topology="v5e:4x4"):
    """Bytes of a gradient, and the report of the program of the runner, a loop.

    The char LM is wider here, so that sums can be hidden; it has one block, to be fast.
    """
    sizes = dict(batch_size=workers * 64, width=128, context=128, depth=1)
    experiment = Experiment(
        question="?",
        task=tasks.char_lm(**sizes),
        training=on_devices(lambda: exchange(optax.sgd(0.1)), workers=workers),
        seeds=1,
        updates=20,
        evaluate_every=10,
    )
    return size_of(experiment), next(compile_pod.reports(experiment, topology))


def size_of(experiment):
    """Bytes of the parameters, and of a gradient."""
    params = jax.eval_shape(experiment.task.init, jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


@needs_libtpu
@pytest.mark.parametrize("workers, topology", [(16, "v5e:4x4"), (8, SMALL)])
def test_the_char_lm_s_overlapped_gradients_hide(workers, topology):
    """With two workers on a device, too."""
    size, late = char_lm(dj.exchange.overlapped_mean, workers, topology)
    # the staleness, one number, is sent with the gradient
    assert gradients(late, hidden=True) == size + 4
    assert gradients(late, hidden=False) == 0


@needs_libtpu
def test_the_char_lm_s_fresh_gradients_do_not_hide():
    """They are sent in one bucket, which waits for the last of them.

    For each asynchronous collective, XLA counts 16 MiB of on-chip memory that is
    written and read. At a width of 32 that is more than a tenth (75 MiB; the bound is
    46). At a width of 256, with 4 blocks, activations do not fit beside it (6312 MiB;
    the bound is 5793).
    """
    size, fresh = char_lm(dj.exchange.mean)
    _, late = char_lm(dj.exchange.overlapped_mean, 16, "v5e:4x4")
    assert gradients(fresh, hidden=True) == 0
    assert late.bytes_accessed <= 1.1 * (fresh.bytes_accessed + 2 * size)


@pytest.fixture
def shard(tmp_path):
    """A file of random tokens: the compiled program does not depend on them."""
    path = tmp_path / "shard.bin"
    tokens = np.random.default_rng(0).integers(50_304, size=10_000)
    tokens.astype("<u2").tofile(path)
    return str(path)


EMBEDDING = 4 * 50_304 * 768  # bytes of the embedding's gradient


def decoder(shard, exchange, topology, workers=16, depth=1, **knobs):
    """The report of `configs/tokens_pod.py` with one or two blocks."""
    config = tokens_pod.get_config()
    sizes = dict(depth=depth, workers=workers, batch_size=8 * workers)
    config.update(shards=shard, exchange=exchange, **sizes, **knobs)
    return next(compile_pod.reports(tokens_pod.experiment(config), topology))


@needs_libtpu
@pytest.mark.parametrize(
    ("topology", "depth"), [("v5e:4x4", 2), ("v5p:2x2x4", 1), ("v6e:4x4", 1)]
)
def test_nine_tenths_of_a_bfloat16_decoder_s_late_sums_are_hidden(
    shard, topology, depth
):
    """bfloat16 activations, float32 parameters and gradients.

    Without the barrier at the sums, only 72 % are hidden with two blocks.
    """
    late = decoder(shard, "overlapped_mean", topology, depth=depth)
    hidden, exposed = (gradients(late, hidden=h) for h in (True, False))
    assert hidden >= 0.9 * (hidden + exposed)
    assert hidden + exposed >= EMBEDDING


@needs_cuda
@pytest.mark.parametrize("workers", [8, 16], ids=["one a device", "two a device"])
def test_a_decoder_s_late_sums_are_hidden_on_gpus(shard, workers):
    """Products and memory traffic hide them; the schedule shows it without a GPU."""
    late = decoder(shard, "overlapped_mean", "h100:1x1x8", workers=workers)
    assert late.devices == 8
    assert gradients(late, hidden=False) <= 0.1 * gradients(late, hidden=True)
    assert gradients(late, hidden=True) >= EMBEDDING
    assert "bytes it accesses" not in compile_pod.table(late)  # XLA does not say


@needs_cuda
def test_a_decoder_s_last_fresh_sum_is_not_hidden_on_gpus(shard):
    fresh, late = (
        decoder(shard, exchange, "h100:1x1x8", workers=8)
        for exchange in ("mean", "overlapped_mean")
    )
    assert gradients(fresh, hidden=False) >= EMBEDDING
    assert late.flops == pytest.approx(fresh.flops, rel=1e-6)


@needs_libtpu
def test_between_slices_a_sum_is_sent_and_received():
    """Each slice sums the gradients of its members; then the two slices sum these."""

    def make():
        late = dj.exchange.overlapped_mean(optax.sgd(0.1), axis_name="groups")
        return dj.exchange.mean(late, axis_name="members")

    experiment = Experiment(
        question="?",
        task=tasks.digits_mlp(batch_size=32),
        training=on_devices(make, workers=8, groups=2),
        seeds=1,
        updates=10,
    )
    report = next(compile_pod.reports(experiment, "2*v5e:2x2"))
    size = size_of(experiment)
    assert report.devices == 8
    for between, group in ((True, 2), (False, 4)):
        sums = [c for c in report.collectives if c.between_slices == between]
        assert {(c.kind, c.group_size) for c in sums} == {("all-reduce", group)}
        # the gradient, and a few numbers, a tile each
        assert size <= sum(c.num_bytes for c in sums) <= size + 4096
        assert all(c.asynchronous for c in sums) or not between
    assert "2 slices" in compile_pod.table(report)


@needs_libtpu
def test_between_slices_a_member_sends_its_share_and_nothing_waits_for_it(shard):
    """One transfer sums the shares over the groups, while all products are computed."""
    config = tokens_pod.get_config()
    small = dict(width=256, heads=4, depth=1, batch_size=64)
    config.update(small | dict(workers=8, groups=2, shards=shard))
    experiment = tokens_pod.experiment(config)
    report = next(compile_pod.reports(experiment, "2*v5e:2x2"))
    whole = size_of(experiment)
    assert report.devices == 8
    between = [c for c in report.collectives if c.between_slices]
    assert {(c.kind, c.group_size) for c in between} == {("all-reduce", 2)}
    # a quarter of the gradient, the small leaves, and a few numbers
    sent = sum(c.num_bytes for c in between)
    assert whole / 4 <= sent <= 1.01 * whole / 4
    largest = max(between, key=lambda c: c.num_bytes)
    assert largest.num_bytes >= 0.99 * sent
    assert largest.hidden
    assert largest.beside_seconds >= 0.5 * report.seconds
    # in a group, gradients are summed, and the sums are gathered
    assert {c.group_size for c in report.collectives if not c.between_slices} == {4}
    assert "all-gather" in {c.kind for c in report.collectives}
    assert "2 slices" in compile_pod.table(report)


@needs_libtpu
@pytest.mark.parametrize(
    "topology, devices", [(SMALL, 4), ("v5e:4x4", 16), ("v5e:16x16", 256)]
)
def test_of_a_sharded_history_a_device_holds_its_part(topology, devices):
    depth, width, rows = 7, 512, 8
    history = dj.ring.sharded("workers", num_workers=devices)
    late = dj.delayed(optax.sgd(0.01), depth, history=history)
    report = trained(dj.exchange.mean(late), width=width, rows=rows, topology=topology)
    slots = (depth + 1) * 4 * width**2 // devices
    # besides: the age and the loss of each gradient, and the clocks of two rings
    assert report.history_bytes - slots == (depth + 1) * 2 * 4 + 2 * 8
    # parameters, the history, the examples of the worker, and scalars, a tile each
    held = 4 * width**2 + slots + 4 * rows * width
    assert report.argument_bytes == pytest.approx(held, abs=8192)
    assert report.collectives  # the gradient that is read is gathered


def gradient(weight, x):
    """A gradient that takes LAYERS + 1 products."""
    weight = dj.workers.vary(weight)
    for _ in range(LAYERS):
        x = jnp.tanh(x @ weight)
    return x.T @ x


def late(state, x):
    weight, outbox = state
    mean = jax.lax.psum(outbox[0], "workers")
    return (weight - mean, gradient(weight, x)[None]), x


def over(mesh, step):
    """A step on all devices, and the shapes of its arguments."""
    state = (P(), P("workers"))
    specs = (state, P("workers"))
    held = shape(mesh, P(), WIDTH, WIDTH), shape(mesh, P("workers"), 4, WIDTH, WIDTH)
    batch = shape(mesh, P("workers"), 4 * ROWS, WIDTH)
    mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=specs)
    return mapped, (held, batch)


@needs_libtpu
def test_a_sum_of_what_is_there_already_is_hidden_by_the_products():
    report = examined(*over(mesh_of(SMALL), late))
    (one,) = report.collectives
    assert (one.kind, one.num_bytes, one.group_size) == ("all-reduce", MATRIX, 4)
    product = 2 * ROWS * WIDTH**2
    speed = chips.topology(SMALL).speed
    # it runs beside a product; the compiler expects less than the peak speed
    assert product / speed.flops < one.beside_seconds < report.seconds
    assert one.needed_bandwidth == 2 * MATRIX * 3 / 4 / one.beside_seconds
    assert report.flops == pytest.approx((LAYERS + 1) * product, rel=0.01)
    assert report.exchanged_bytes(hidden=one.hidden) == MATRIX
    assert report.exchanged_bytes(hidden=not one.hidden) == 0
    # the weight and its outbox are donated, but the batch is not
    assert report.argument_bytes == 2 * MATRIX + 4 * ROWS * WIDTH
    assert report.output_bytes == pytest.approx(4 * ROWS * WIDTH, rel=0.01)
    assert (report.devices, report.history_bytes, report.host_bytes) == (4, 0, 0)


@needs_libtpu
def test_without_the_options_the_same_sum_is_on_the_critical_path():
    report = examined(*over(mesh_of(SMALL), late), options={})
    (one,) = report.collectives
    assert not one.asynchronous
    assert report.exchanged_bytes(hidden=False) == MATRIX
    text = compile_pod.table(report)
    assert f"0 hidden, {MATRIX:,} not" in text
    assert "synchronous" in text and "asynchronous" not in text


@needs_libtpu
def test_histories_are_counted_on_the_device_that_holds_them():
    ring = jax.eval_shape(lambda: dj.ring.init(jnp.zeros((4, WIDTH, WIDTH)), CAPACITY))
    mesh, clock = mesh_of(SMALL), 4 * len(jax.tree.leaves(ring._replace(slots=())))
    placed = jax.tree.map(
        lambda x: shape(
            mesh, P(None, "workers") if x.ndim > 1 else P(), *x.shape, dtype=x.dtype
        ),
        ring,
    )

    def step(ring, x):
        return dj.ring.push(ring, dj.ring.read(ring, 1, x) + x)

    item = shape(mesh, P("workers"), 4, WIDTH, WIDTH)
    report = examined(step, (placed, item))
    assert report.history_bytes == CAPACITY * MATRIX + clock
    assert report.collectives == ()
    assert "exchanges" not in compile_pod.table(report)


BLOCKS = (8, 1024, 4096)  # layers, in one leaf


@functools.cache
def late_blocks(delay):
    """A donated step of delayed SGD, compiled for a v5e."""
    tx = dj.delayed(optax.sgd(0.1), delay)

    def step(state, grads):
        params, opt_state = state
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    mesh = mesh_of(SMALL)
    blocks = jax.ShapeDtypeStruct(BLOCKS, jnp.float32)
    arguments = jax.eval_shape(lambda x: ((x, tx.init(x)), x), blocks)
    return examined(
        step,
        jax.tree.map(
            lambda leaf: shape(mesh, P(), *leaf.shape, dtype=leaf.dtype), arguments
        ),
    )


@needs_libtpu
@pytest.mark.parametrize("delays", [(7, 7, 5, 5, 3, 3, 1, 1), (7, 6, 5, 4, 3, 2, 1, 0)])
def test_on_a_tpu_delays_by_layer_move_one_copy_of_the_leaf_more(delays):
    """With one delay: reads of gradient, slot, parameters; writes of slot, parameters.

    With several histories, XLA does not fuse their reads with the update.
    """
    by_layer, whole = late_blocks(dj.delays.Layers(delays)), late_blocks(7)
    size = 4 * math.prod(BLOCKS)
    assert whole.bytes_accessed == pytest.approx(5 * size, rel=0.01)
    assert by_layer.bytes_accessed <= 1.1 * (whole.bytes_accessed + 2 * size)
    assert by_layer.temp_bytes <= 1.02 * size
    kept = sum(delay + 1 for delay in delays if delay) / len(delays)
    assert by_layer.history_bytes == pytest.approx(kept * size, rel=0.001)


@needs_libtpu
def test_what_does_not_fit_is_refused_with_its_sizes():
    rows = shape(mesh_of(SMALL), P(), 5 * 2**10, 2**20)  # 20 GiB
    with pytest.raises(
        chips.PodError, match=r"15\.75 GiB: its arguments are 20\.00 GiB.*history"
    ):
        examined(lambda x: x + 1, (rows,))


@needs_libtpu
@pytest.mark.parametrize(
    "topology, devices",
    [
        ("v5e:2x2", 4),
        ("v4:2x2x2", 8),
        ("v5e:4x4", 16),
        ("v6e:16x16", 256),
        ("2*v5e:4x4", 32),
    ],
)
def test_a_topology_has_its_devices(topology, devices):
    pod = chips.topology(topology).devices()
    assert len(pod) == devices
    slices = {getattr(device, "slice_index", 0) for device in pod}
    assert slices == set(range(chips.topology(topology).slices))


@needs_libtpu
def test_a_topology_that_cannot_be_is_named():
    with pytest.raises(chips.PodError, match=r"got 'v5e:3x3'.*not divisible"):
        chips.topology("v5e:3x3").devices()


def tiny(workers, *, width=32, batch_size=32, max_delay=3):
    """Two programs, with one cell and with two cells, in chunks of ten updates."""

    def late(make):
        def of(learning_rate):
            mean = dj.exchange.mean(make(learning_rate))
            return dj.delayed(mean, max_delay)

        return on_devices(of, workers=workers)

    return Experiment(
        question="?",
        task=tasks.digits_mlp(width=width, batch_size=batch_size),
        arms=[
            Arm(training=late(optax.sgd), labels={"optimizer": "sgd"}),
            Arm(
                training=late(optax.adam),
                labels={"optimizer": "adam", "again": 1},
                grid={"learning_rate": (0.001, 0.01)},
            ),
        ],
        grid={"learning_rate": (0.1,)},
        seeds=1,
        updates=20,
        evaluate_every=10,
    )


@needs_libtpu
@pytest.mark.parametrize("workers", [4, 8], ids=["one a device", "two a device"])
def test_the_command_prints_the_table_of_each_program(workers, capsys):
    experiment = tiny(workers)
    compile_pod.main(experiment, SMALL)
    text, names = capsys.readouterr().out, ["sgd", "adam-again=1"]
    assert [f"{name} on {SMALL}: 4 devices" in text for name in names] == [True, True]
    reports = [*compile_pod.reports(experiment, SMALL)]
    assert [report.program for report in reports] == names
    size = size_of(experiment)
    for report, cells in zip(reports, (1, 2), strict=True):
        assert report.devices == 4
        # a device has four gradients and losses for each cell and worker, four ages for
        # each cell, and the clocks of two rings
        each = workers // 4
        slots = 4 * size * cells * each
        assert report.history_bytes == slots + 16 * cells * (1 + each) + 2 * 8
        sent = report.collectives
        # beside the gradients, a few numbers
        assert 0 < sum(c.num_bytes for c in sent) - size * cells <= 64 * cells
        waits = [c.waiting_seconds * c.times for c in sent]
        assert report.waiting_seconds == pytest.approx(sum(waits))
        kinds = {(c.kind, c.group_size, c.times) for c in sent}
        assert kinds == {("all-reduce", 4, 1)}


def simulated():
    """An experiment whose training sends nothing."""
    cluster = dj.cluster.Cluster(4, dj.cluster.constant(1.0))
    source = Simulation(cluster, dj.cluster.protocols.hardsync())
    return Experiment(
        question="?",
        task=tasks.quadratic(),
        training=along(source, lambda: optax.sgd(0.1)),
        updates=2,
    )


@needs_libtpu
@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tiny(6, batch_size=12), "sgd has 6 workers, but v5e:2x2 has 4 dev"),
        (lambda: tiny(4, batch_size=6), "`workers` must divide the examples .*got 4"),
        (simulated, "all has 1 workers, but v5e:2x2 .* train `on_devices`"),
        (
            lambda: tiny(4, width=2**20, max_delay=4000),
            "sgd does not fit a device of v5e:2x2.* GiB are histories",
        ),
    ],
    ids=["workers", "batch", "simulated", "memory"],
)
def test_the_command_fails_where_an_experiment_does_not_fit(make, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        compile_pod.main(make(), SMALL)


def test_a_missing_flag_is_one_line():
    code, output = finish(
        "--config=configs/default.py", module="experiments.pods.compile_pod"
    )
    assert (code, output) == (1, "error: --topology is missing.\n")
