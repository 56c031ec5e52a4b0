"""Which cells share a compiled program."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import Arm, Experiment, Range, optimizer, tasks
from experiments.running.families import sharded
from experiments.running.program import label
from experiments.running.programs import programs

QUADRATIC = tasks.quadratic()


def late(learning_rate, momentum, delay):
    tx = optax.sgd(learning_rate, momentum=momentum)
    return dj.delayed(tx, delay, max_delay=8)


def of(training=late, *, grid, task=QUADRATIC, **options):
    return programs(
        Experiment(
            **dict(question="?", task=task, training=training, grid=grid, updates=4)
            | options
        )
    )


GRID = {"learning_rate": (0.1, 0.2), "momentum": (0.0, 0.9), "delay": (0, 4)}


def test_numbers_that_the_functions_can_trace_are_one_program():
    (program,) = of(grid=GRID)
    assert program.size == 8
    assert {axis: values.dtype.name for axis, values in program.cells.items()} == {
        "learning_rate": "float32",
        "momentum": "float32",
        "delay": "int32",
    }
    assert program.settings()[1] == {"learning_rate": 0.1, "momentum": 0.0, "delay": 4}


@pytest.mark.parametrize(
    "make",
    [
        lambda: dj.delayed(
            dj.exchange.mean(optax.sgd(0.1)),
            dj.delays.per_worker([0, 3]),
            max_delay=3,
        ),
        lambda: dj.exchange.mean(
            dj.delayed(
                optax.sgd(0.1), 2, history=dj.ring.sharded("workers", num_workers=2)
            )
        ),
    ],
    ids=["a delay for each worker", "a part of the history for each"],
)
def test_what_knows_the_number_of_workers_finds_as_many(make):
    digits = tasks.digits_mlp(batch_size=8)
    (program,) = of(optimizer(make, workers=2), grid={}, task=digits)
    assert program.size == 1


def test_tables_show_the_names_of_values_and_functions_get_the_values():
    def make(learning_rate, law, start):
        assert start in (optax.identity, optax.trace)
        return optax.sgd(learning_rate * law)

    laws = {"none": 1.0, "halved": 0.5}
    starts = {"plain": optax.identity, "heavy": optax.trace}
    grid = {"learning_rate": (0.1,), "law": laws, "start": starts}
    plain, heavy = of(make, grid=grid)
    assert [cell["law"] for cell in plain.settings()] == ["none", "halved"]
    np.testing.assert_array_equal(plain.cells["law"], [1.0, 0.5])
    assert {cell["start"] for cell in heavy.settings()} == {"heavy"}
    assert heavy.static == {"start": optax.trace}
    assert heavy.name == "start=heavy"


def test_a_declared_axis_is_never_traced():
    result = of(grid=GRID, static=("delay",))
    assert [program.static for program in result] == [{"delay": 0}, {"delay": 4}]


def test_an_axis_of_the_task_makes_a_task_for_each_value():
    result = of(
        optax.sgd,
        task=lambda noise: tasks.quadratic(noise=noise),
        grid={"noise": (0.0, 1.0), "learning_rate": (0.1, 0.2)},
    )
    assert [program.columns["noise"] for program in result] == [0.0, 1.0]
    assert result[0].task is not result[1].task


def test_arms_take_the_axes_that_they_have_and_may_have_their_own():
    arms = [
        ({"method": "sgd"}, optax.sgd),
        Arm(
            labels={"method": "momentum"},
            training=optimizer(lambda learning_rate, m: optax.sgd(learning_rate, m)),
            grid={"m": (0.5, 0.9)},
        ),
    ]
    grid = {"learning_rate": (0.1, 0.2)}
    result = of(None, arms=arms, grid=grid)
    assert [program.size for program in result] == [2, 4]
    assert [program.columns["method"] for program in result] == ["sgd", "momentum"]


def test_programs_have_names_of_their_own():
    arms = [({"n": "a b"}, optax.sgd), ({"n": "a_b"}, optax.sgd)]
    names = [p.name for p in of(None, arms=arms, grid={"learning_rate": (0.1,)})]
    assert len(set(names)) == 2


def test_no_program_has_the_name_of_a_folder_above_its_checkpoints():
    arms = [({"n": ".."}, optax.sgd), ({"n": "."}, optax.sgd)]
    names = [p.name for p in of(None, arms=arms, grid={"learning_rate": (0.1,)})]
    assert names == ["all", "all-2"]


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_the_parts_of_a_grid_are_the_whole(parts):
    whole = of(grid=GRID, static=("delay",))
    cells = [row for program in whole for row in program.settings()]
    result = [
        row
        for part in range(parts)
        for program in sharded(whole, part, parts)
        for row in program.settings()
    ]
    assert sorted(map(str, result)) == sorted(map(str, cells))
    sizes = [sum(p.size for p in sharded(whole, i, parts)) for i in range(parts)]
    assert max(sizes) - min(sizes) <= 1


SGD = ({"rule": "sgd"}, lambda learning_rate: optax.sgd(learning_rate))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training": lambda learning_rate, law: optax.sgd(learning_rate),
          "grid": {"law": (lambda: 1, lambda: 2)}}, "two cells with the same columns"),
        ({"arms": [Arm(training=SGD[1], labels={"rule": "sgd"},
                       grid={"learning_rate": Range(low, 1.0)}) for low in (0.1, 0.2)]},
         r"two cells with the same columns \(rule=sgd\): give each value once"),
        ({"arms": [SGD], "grid": {"delayy": (0, 4)}}, "axis 'delayy', which no arm"),
        ({"training": lambda learning_rate, seed: optax.sgd(learning_rate),
          "grid": {"seed": (1, 2)}}, r"axis 'seed', the name .* \(seeds are `seeds`\)"),
    ],
)  # fmt: skip
def test_cells_that_no_column_would_tell_apart_are_refused(options, message):
    grid = {"learning_rate": (0.1,)} | options.pop("grid", {})
    with pytest.raises(ValueError, match=message):
        of(options.pop("training", None), grid=grid, **options)


def digits_with(**changes):
    return dataclasses.replace(tasks.digits_mlp(batch_size=4), **changes)


def without_updates(seed, start, stop, *part):
    batch = tasks.digits_mlp(batch_size=4).batches(seed, start, stop, *part)
    return jax.tree.map(lambda x: x[0], batch)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (digits_with(batches=without_updates), r"of shape \[1, 1, ...\], a batch for"),
        (
            digits_with(batches=without_updates, examples=None),
            r"`batches`\(0, 0, 1\) must return arrays of shape \[1, ...\], a batch for",
        ),
        (digits_with(examples=3), r"of `examples=3`, got \(1, 2, 8"),
        (digits_with(examples=8), r"of `examples=8`, got \(1, 0, 8"),
    ],
)
def test_batches_of_another_shape_are_refused_before_a_row_is_taken_for_one(
    task, message
):
    with pytest.raises(ValueError, match=message):
        of(task=task, grid=GRID)


def test_a_label_is_the_same_in_every_process_whatever_is_printed():
    late = functools.partial(optax.sgd, momentum=0.9)
    values = late, object(), np.arange(2000.0), jax.numpy.arange(3)
    labels = [label(value) for value in values]
    assert not any(" at 0x" in text for text in labels)
    assert labels[1] == "<object object>"
    with np.printoptions(precision=1, threshold=2):
        assert [label(value) for value in values] == labels
    assert labels[3] == "[0, 1, 2]"
