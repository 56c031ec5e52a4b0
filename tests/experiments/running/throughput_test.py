"""Rates are counts a second, FLOPs the textbook's; an unknown chip has no MFU."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import on_devices, optimizer
from experiments.host import progress
from experiments.running import rows, throughput
from experiments.running.cells import Chunk, Counters
from experiments.running.trainer import Trainer
from experiments.tasks import language, models
from experiments.tasks.task import Task
from tests.support.training_runs import DIGITS, program_of


def transformer(**options):
    text = [np.arange(4000) % 50]
    return language.predict_next(text, text, vocab=50, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("width", "depth", "context"), [(16, 1, 16), (32, 3, 24)])
def test_a_transformer_costs_six_flops_a_weight_and_token(width, depth, context, dtype):
    sizes = dict(width=width, depth=depth, context=context)
    task = transformer(**sizes, dtype=dtype, heads=2, batch_size=8)
    weights = 12 * depth * width**2 + 50 * width  # positions are in no product
    attention = 12 * depth * width * context**2  # PaLM, appendix B
    expected = 6 * weights * context + attention
    assert throughput.flops_of_an_example(task) == expected


def test_resnet50_costs_four_billion_multiply_adds_forward():
    model = models.ResNet50(classes=1000)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.uint8)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    task = Task(
        init=lambda key: params,
        loss=lambda params, image: model.apply({"params": params}, image).mean(),
        batches=lambda seed, start, stop, part: np.zeros((1, 1, 224, 224, 3), np.uint8),
        evaluate=lambda params: {},
        examples=1,
    )
    per_place = {  # side -> weights of the convolutions whose output has it
        112: 49 * 3 * 64,
        56: 64 * 256 + 64**2 + 2 * 256 * 64 + 3 * (9 * 64**2 + 64 * 256) + 256 * 128,
    }
    for side, width, blocks, before in ((28, 128, 4, 256), (14, 256, 6, 512)):
        per_place[side] = _stage(width, blocks, before) + 4 * width * 2 * width
    per_place[7] = _stage(512, 3, 1024)
    expected = sum(side**2 * weights for side, weights in per_place.items())
    expected += 2048 * 1000
    assert throughput.flops_of_an_example(task) == 3 * 2 * expected
    assert expected == pytest.approx(4.1e9, rel=0.01)


def _stage(width, blocks, before):
    """Weights at a stage's own side; the first 1 x 1 is still at the side before."""
    shortcut = before * 4 * width
    rest = (blocks - 1) * 4 * width * width
    return shortcut + rest + blocks * (9 * width**2 + 4 * width * width)


def test_a_scan_s_products_count_at_each_of_its_steps():
    def loss(w, x):
        return jax.lax.scan(lambda c, _: (c @ w, None), x, length=7)[0].sum()

    task = Task(
        init=lambda key: jnp.zeros((5, 5)),
        loss=loss,
        batches=lambda seed, start, stop, part: np.zeros((1, 1, 5), np.float32),
        evaluate=lambda w: {},
        examples=1,
    )
    assert throughput.flops_of_an_example(task) == 3 * 7 * 2 * 5 * 5


@pytest.mark.parametrize("examples_per_second", [0.5, 40.0])
def test_rates_are_counts_times_examples_a_second(examples_per_second):
    work = throughput.Work(tokens=96, flops=3e12, peak_flops=1e15)
    assert work.rates(examples_per_second) == {
        "examples_per_second": examples_per_second,
        "tokens_per_second": 96 * examples_per_second,
        "mfu": 3e12 * examples_per_second / 1e15,
    }
    nothing = throughput.Work(None, 3e12, None)
    assert nothing.rates(2.0) == {"examples_per_second": 2.0}


GRID = {"learning_rate": (0.01, 0.03), "delay": (0, 3)}


def late(learning_rate, delay):
    mean = dj.exchange.mean(optax.sgd(learning_rate))
    return dj.delayed(mean, delay, max_delay=3)


def test_a_cpu_has_no_peak_and_every_kind_one_that_is_positive():
    nothing = throughput.Work(None, None, None)
    assert throughput.work_of(DIGITS, jax.devices()) == nothing
    assert all(1e14 < peak < 1e15 for peak in throughput.PEAK_FLOPS.values())
    assert jax.devices()[0].device_kind not in throughput.PEAK_FLOPS


def test_the_peak_is_that_of_all_devices():
    v5e, other = (
        types.SimpleNamespace(device_kind=name) for name in ("TPU v5 lite", "TPU v99")
    )
    task = transformer(batch_size=8, context=16)
    for used in (1, 4):
        work = throughput.work_of(task, [v5e] * used)
        assert work.peak_flops == used * 197e12
        assert work.tokens == 16  # a window's
        assert work.flops == throughput.flops_of_an_example(task)
    assert throughput.work_of(task, [v5e, other]).peak_flops is None


@pytest.mark.parametrize(("kind", "used"), [(optimizer, 1), (on_devices, 4)])
def test_a_program_is_on_one_device_if_it_simulates_its_workers(kind, used):
    made = Trainer(program_of(kind(late, workers=4), task=DIGITS, grid=GRID))
    assert made.devices == jax.devices()[:used]


@pytest.mark.parametrize("peak", [100e12, None])
def test_metrics_and_progress_say_tokens_a_second_and_mfu(caplog, peak):
    """Ten updates of 8 examples in two cells of two seeds, in a quarter of a second."""
    program = program_of(optax.sgd, task=DIGITS)
    work = throughput.Work(tokens=64, flops=1e11, peak_flops=peak)
    chunk = Chunk(np.ones((10, 2, 2), np.float32), np.zeros((10, 2, 2)))
    none = np.zeros((2, 2), np.int32)
    counters = Counters(none - 1, np.ones((2, 2, 1), np.int32), none + 1, none, none)
    row = rows.Rows(program, work).of_chunk(30, chunk, counters, 0.25, None)
    assert row["updates_per_second"] == 40.0
    assert row["examples_per_second"] == 40 * 8 * 4
    assert row["tokens_per_second"] == 64 * 40 * 8 * 4
    assert row.get("mfu") == (None if peak is None else pytest.approx(1.28))
    with (
        caplog.at_level("INFO", logger="experiments"),
        progress.Bars([30]).next_bar("name") as bar,
    ):
        bar.begin(20)
        bar.update(row, progress.working())
    assert "40/s, 8.19e+04 tokens/s" in caplog.text
    assert ("MFU 128.0%" in caplog.text) == (peak is not None)
