import jax
import jax.numpy as jnp
import numpy as np
import pytest

import delayjax as dj
from experiments.checkpoints import Checkpoints, OtherRunError
from experiments.train import TrainState


def state_at(step, max_delay=2):
    return TrainState(
        step=jnp.int32(step),
        opt_state=dj.ring.push(dj.ring.init(jnp.zeros(3), max_delay + 1), jnp.ones(3)),
        staleness_counts=jnp.arange(3),
        clipped=jnp.int32(1),
        params={"w": jnp.full(2, step, jnp.bfloat16)},
        diverged_step=jnp.int32(-1),
    )


def opened(path, max_delay=2, kept=2):
    return Checkpoints(path, max_delay=max_delay, kept=kept)


def assert_same(got, expected):
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_nothing_saved_is_nothing_restored(tmp_path):
    assert opened(tmp_path / "c").restore(state_at(0)) is None


def test_the_newest_state_comes_back_bit_for_bit(tmp_path):
    saved = opened(tmp_path / "c")
    for step in (10, 20, 30):
        saved.save(state_at(step))
    saved.close()
    like = jax.eval_shape(lambda: state_at(0))
    assert_same(opened(tmp_path / "c").restore(like), state_at(30))


# Orbax leaves the coroutines of a failed read unawaited
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("victim", ["state/manifest.ocdbt", "facts/metadata"])
def test_a_truncated_newest_is_reported_and_the_one_before_it_used(
    tmp_path, victim, caplog
):
    saved = opened(tmp_path / "c")
    saved.save(state_at(10))
    saved.save(state_at(20))
    saved.close()
    path = tmp_path / "c" / "20" / victim
    path.write_bytes(path.read_bytes()[:7])
    again = opened(tmp_path / "c")
    with caplog.at_level("WARNING", logger="experiments"):
        assert_same(again.restore(state_at(0)), state_at(10))
    assert "checkpoint of step 20" in caplog.text and "cannot be read" in caplog.text
    assert (tmp_path / "c-broken-20").exists()
    again.save(state_at(20))  # there is room for it again
    assert_same(opened(tmp_path / "c").restore(state_at(0)), state_at(20))


def test_a_checkpoint_of_another_max_delay_is_refused_naming_both(tmp_path):
    saved = opened(tmp_path / "c", max_delay=2)
    saved.save(state_at(10))
    saved.close()
    with pytest.raises(
        OtherRunError, match=r"has max_delay 2, the config 5.*max_delay=2"
    ):
        opened(tmp_path / "c", max_delay=5).restore(state_at(0, max_delay=5))
    assert (tmp_path / "c" / "10").exists()
