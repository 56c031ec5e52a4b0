"""A history in slots that are chosen at each push, compared with a dictionary."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from delayjax._src.history import slots
from tests.support.compiled import compile_as_usual

LIKE = {"a": jnp.zeros(2), "b": jnp.zeros((), jnp.bfloat16)}


def item(number):
    return {"a": jnp.full(2, float(number)), "b": jnp.asarray(-number, jnp.bfloat16)}


def filled(capacity, places):
    """The history after some pushes into slots, and the same in a dictionary."""
    history, held = slots.init(LIKE, capacity), {}
    for number, place in enumerate(places):
        history = slots.push(history, item(number), jnp.asarray(place))
        held[place] = number
    return history, held


def assert_holds(history, held, capacity):
    for place in range(capacity):
        if place in held:
            assert history.slots.number[place] == held[place] + 1
            got = slots.read(history, jnp.asarray(place), LIKE)
            jax.tree.map(np.testing.assert_array_equal, got, item(held[place]))
        else:
            assert history.slots.number[place] == 0


PLACES = [0, 1, 0, 3, 1, 2, 3]


@pytest.mark.parametrize("pushes", range(len(PLACES) + 1))
def test_a_slot_holds_what_was_written_there_last_and_its_number(pushes):
    history, held = filled(4, PLACES[:pushes])
    assert history.pushed == pushes
    assert_holds(history, held, 4)


@pytest.mark.parametrize(("before", "after"), [(4, 7), (4, 4), (7, 4)])
def test_items_keep_their_slots_in_a_history_of_another_size(before, after):
    history, held = filled(before, PLACES)
    resized = dj.resize_history(history, slots.init(LIKE, after))
    assert resized.pushed == len(PLACES)
    assert resized.slots.number.shape == resized.slots.item["b"].shape == (after,)
    assert_holds(resized, held, after)


def test_a_stripped_history_holds_nothing_and_goes_on_counting():
    history, _ = filled(4, PLACES)
    stripped = dj.strip_history(history)
    assert stripped.slots is None
    resized = dj.resize_history(stripped, slots.init(LIKE, 4))
    assert resized.pushed == len(PLACES)
    assert_holds(resized, {}, 4)


def test_a_history_of_other_items_is_no_other_size():
    history, _ = filled(4, PLACES)
    other = slots.init(LIKE | {"a": jnp.zeros(3)}, 4)
    with pytest.raises(ValueError, match=r"`like` must differ in its depth .*a"):
        dj.resize_history(history, other)


def test_a_grid_keeps_its_axis_in_a_history_of_another_size():
    cells = jnp.arange(3.0)
    axes = dj.ring.vmap_axes(slots.init(cells[0], 2))

    def grid_of(capacity):
        return jax.vmap(lambda x: slots.init(x, capacity), out_axes=axes)(cells)

    push = jax.vmap(slots.push, (axes, 0, None), axes)
    grid = push(grid_of(2), cells, jnp.asarray(1))
    larger = dj.resize_history(grid, grid_of(5))
    assert larger.slots.item.shape == larger.slots.number.shape == (3, 5)
    np.testing.assert_array_equal(larger.slots.item[:, 1], cells)
    np.testing.assert_array_equal(larger.slots.number, [[0, 1, 0, 0, 0]] * 3)


def pushed_in(slot_axis, cells=3):
    """The program of a push in each cell of a grid, with donation."""
    shapes = jax.eval_shape(lambda: slots.init(jnp.zeros(4), 5))
    axes = dj.ring.vmap_axes(shapes)
    assert axes == dj.ring.Ring(slots.Numbered(0, 0), pushed=None, first=None)
    init = jax.vmap(lambda leaf: slots.init(leaf, 5), out_axes=axes)
    push = jax.vmap(slots.push, (axes, 0, slot_axis), axes)
    items = jnp.ones((cells, 4))
    places = jnp.zeros(cells, jnp.int32) if slot_axis == 0 else jnp.int32(0)
    grid = jax.eval_shape(init, items)
    lowered = jax.jit(push, donate_argnums=0).lower(grid, items, places)
    return compile_as_usual(lowered).as_text()


def test_cells_that_share_a_slot_write_it_in_place():
    program = pushed_in(None)
    assert " dynamic-update-slice(" in program
    assert " scatter(" not in program


@pytest.mark.parametrize("slot_axis", [None, 0])
def test_a_push_copies_no_history(slot_axis):
    assert not re.search(r"f32\[3,5,4\]\S* copy\(", pushed_in(slot_axis))
