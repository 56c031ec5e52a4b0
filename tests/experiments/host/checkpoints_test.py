import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from experiments.host import processes
from experiments.host.checkpoints import Checkpoints
from experiments.running.cells import State
from experiments.training.jobs import Model

pytestmark = pytest.mark.runs


def state_at(step, max_delay=2):
    return State(
        seed=jnp.arange(2),
        cell={"learning_rate": jnp.ones(3)},
        step=jnp.int32(step),
        memory=dj.ring.push(dj.ring.init(jnp.zeros(3), max_delay + 1), jnp.ones(3)),
        staleness_counts=jnp.arange(3),
        refused=jnp.int32(0),
        model=Model({"w": jnp.full(2, step, jnp.bfloat16)}),
        diverged_step=jnp.int32(-1),
    )


def assert_same(got, expected):
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_the_newest_state_comes_back_bit_for_bit(tmp_path):
    saved = Checkpoints(tmp_path / "c")
    assert saved.restore(state_at(0)) is None  # there is no checkpoint
    for step in (10, 20, 30):
        saved.save(step, state_at(step))
    saved.close()
    like = jax.eval_shape(lambda: state_at(0))
    assert_same(Checkpoints(tmp_path / "c").restore(like), state_at(30))


def test_a_state_that_is_donated_and_overwritten_meanwhile_is_saved_as_it_was(tmp_path):
    """The next chunk overwrites the state while 64 MB are written."""
    overwrite = jax.jit(
        lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0
    )
    saved = Checkpoints(tmp_path / "c")
    large = jnp.arange(16_000_000, dtype=jnp.float32)
    for step in (10, 20):
        state = state_at(step)._replace(model=Model({"w": large + step}))
        jax.block_until_ready(state)
        saved.save(step, state)
        assert not (tmp_path / "c" / str(step)).exists()  # it is still being written
        for _ in range(5):
            state = overwrite(state)
        jax.block_until_ready(state)
    saved.wait()
    assert (tmp_path / "c" / "20").exists()
    for step in (20, 10):
        got = Checkpoints(tmp_path / "c").restore(jax.eval_shape(lambda: state))
        expected = state_at(step)._replace(model=Model({"w": large + step}))
        assert_same(got, expected)
        shutil.rmtree(tmp_path / "c" / str(step))


def test_a_disk_that_fills_up_while_a_state_is_written_is_one_line(
    tmp_path, monkeypatch
):
    def write(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    saved = Checkpoints(tmp_path / "c")
    saved.save(10, state_at(10))
    saved.wait()
    monkeypatch.setattr(type(saved._manager), "wait_until_finished", write)
    full = rf"^the disk of {tmp_path}/c is full: make room"
    for call in (saved.wait, saved.close, lambda: saved.save(20, state_at(20))):
        with pytest.raises(OSError, match=full):
            call()
    monkeypatch.undo()
    assert_same(Checkpoints(tmp_path / "c").restore(state_at(0)), state_at(10))


@pytest.mark.parametrize(
    ("error", "waits"),
    [(KeyboardInterrupt, True), (jax.errors.JaxRuntimeError, False)],
)
def test_who_is_gone_is_not_waited_for(tmp_path, monkeypatch, error, waits):
    """Others write their parts of a checkpoint; if a collective failed, do not wait."""
    waited = []
    monkeypatch.setattr(Checkpoints, "wait", lambda self: waited.append(self))
    with pytest.raises(error), Checkpoints(tmp_path / "c"):
        raise error
    assert bool(waited) == waits


def test_a_key_of_the_memory_comes_back(tmp_path):
    """`optax.add_noise` has such a key."""

    def with_keys(step):
        return state_at(step)._replace(memory=jax.random.split(jax.random.key(step), 3))

    saved = Checkpoints(tmp_path / "c")
    saved.save(10, with_keys(10))
    saved.close()
    like = jax.eval_shape(lambda: with_keys(0))
    got = Checkpoints(tmp_path / "c").restore(like)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, with_keys(10))
    words = [jax.random.key_data(s.memory) for s in (got, with_keys(10))]
    np.testing.assert_array_equal(*words)


def of_two_steps(folder):
    saved = Checkpoints(folder / "c")
    for step in (10, 20):
        saved.save(step, state_at(step))
    return saved


# Orbax does not await the coroutines of a read that fails
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("victim", ["state/manifest.ocdbt", "state/_METADATA"])
def test_a_truncated_newest_is_reported_and_the_one_before_it_used(
    tmp_path, victim, caplog
):
    of_two_steps(tmp_path).close()
    path = tmp_path / "c" / "20" / victim
    path.write_bytes(path.read_bytes()[:7])
    second = Checkpoints(tmp_path / "c")
    with caplog.at_level("WARNING", logger="experiments"):
        assert_same(second.restore(state_at(0)), state_at(10))
    assert "checkpoint of step 20" in caplog.text and "cannot be read" in caplog.text
    assert (tmp_path / "c-broken-20").exists()
    second.save(20, state_at(20))  # there is space for it again
    second.close()
    assert_same(Checkpoints(tmp_path / "c").restore(state_at(0)), state_at(20))


def test_what_another_process_cannot_read_is_passed_over_here_too(
    tmp_path, monkeypatch, caplog
):
    saved = of_two_steps(tmp_path)
    answers = iter([True, False])  # of step 20, then of step 10

    def any_of(broken):
        return [next(answers) or broken]

    monkeypatch.setattr(processes, "any_of", any_of)
    with caplog.at_level("WARNING", logger="experiments"):
        assert_same(saved.restore(state_at(0)), state_at(10))
    assert "step 20" in caplog.text and "another process cannot" in caplog.text


@pytest.mark.parametrize("error", [MemoryError, jax.errors.JaxRuntimeError])
def test_where_memory_is_short_no_checkpoint_is_set_aside(tmp_path, monkeypatch, error):
    saved = Checkpoints(tmp_path / "c")
    saved.save(10, state_at(10))

    def restore(*args, **options):
        raise error("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(saved._state, "restore", restore)
    with pytest.raises(error, match="out of memory"):
        saved.restore(state_at(0))
    assert (tmp_path / "c" / "10").exists()


def test_a_disk_that_is_full_for_another_process_is_full_for_all(tmp_path, monkeypatch):
    saved = Checkpoints(tmp_path / "c")
    monkeypatch.setattr(processes, "any_of", lambda is_full: [True])
    with pytest.raises(OSError, match="is full: make room"):
        saved.save(10, state_at(10))
