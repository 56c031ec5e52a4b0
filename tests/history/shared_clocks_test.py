import jax
import jax.numpy as jnp

import delayjax as dj
from tests.support.compiled import compile_as_usual


def compiled_push(axes_of, cells=3):
    """The program of a push in each of `cells`."""
    ring = jax.eval_shape(lambda: dj.ring.init(jnp.zeros(4), 5))
    axes = axes_of(ring)
    init = jax.vmap(lambda leaf: dj.ring.init(leaf, 5), out_axes=axes)
    push = jax.vmap(dj.ring.push, (axes, 0), axes)
    items = jnp.ones((cells, 4))
    rings = jax.eval_shape(init, items)
    return rings, compile_as_usual(jax.jit(push, donate_argnums=0).lower(rings, items))


def test_vmap_axes_keeps_the_clock_unbatched_and_the_write_in_place():
    rings, program = compiled_push(dj.ring.vmap_axes)
    assert rings.pushed.shape == ()
    assert " dynamic-update-slice(" in program.as_text()
    assert " scatter(" not in program.as_text()


def test_a_batched_clock_scatters():
    rings, program = compiled_push(lambda ring: 0)
    assert rings.pushed.shape == (3,)
    assert " scatter(" in program.as_text()


def test_vmap_axes_marks_every_clock_in_a_state_and_nothing_else():
    state = {"a": [dj.ring.init(jnp.zeros(2), 2)], "pushed": jnp.zeros(3)}
    assert dj.ring.vmap_axes(state) == {
        "a": [dj.ring.Ring(slots=0, pushed=None, first=None)],
        "pushed": 0,
    }
