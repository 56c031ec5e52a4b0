"""Delays in the PeftTrainer of the package tunix."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh

import delayjax as dj
from tests.support import extras
from tests.trainers import pages
from tests.trainers.promises import STALENESS, STEPS, WAYS, Promises, Trained

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    extras.import_or_skip("tunix", "tunix")
    from orbax import checkpoint as ocp
    from tunix.sft import hooks, peft_trainer
    from tunix.utils import env_utils

pytestmark = pytest.mark.filterwarnings("ignore")

RATE = 0.1
MESH = Mesh(np.array(jax.devices()[:4]), ("fsdp",))


class Model(nnx.Module):
    """Its metadata alone place it, as those of the models of tunix do."""

    def __init__(self, param=nnx.Param, dtype=jnp.float32):
        env_utils.setup_sharding_environment()  # as the modules of tunix do
        kernel = jax.random.normal(jax.random.key(0), (8, 4), dtype)
        self.kernel = param(kernel, sharding=("fsdp", None))
        self.bias = nnx.Param(jnp.zeros(4, dtype))

    def __call__(self, x):
        return jnp.tanh(x @ self.kernel[...]) + self.bias[...]


def loss(model, x):
    return jnp.mean((model(x) - 1.0) ** 2).astype(jnp.float32)


def batches(number):
    keys = jax.random.split(jax.random.key(1), number)
    return [np.asarray(jax.random.normal(key, (8, 8))) for key in keys]


class Tells(hooks.TrainingHooks):
    """Sets the staleness of the gradient before each step."""

    def on_train_step_start(self, train_ctx):
        train_ctx.optimizer.opt_state.staleness[...] = STALENESS

    def on_train_start(self, train_ctx): ...
    def on_train_end(self, train_ctx): ...
    def on_train_step_end(self, train_ctx, train_step, train_loss): ...
    def on_eval_step_start(self, train_ctx): ...
    def on_eval_step_end(self, train_ctx, eval_loss): ...


def train(tx, *, steps=STEPS, mesh=MESH, model=Model, hook=None, **config):
    """The trainer after its training loop."""
    config = {"eval_every_n_steps": 1000, "max_steps": steps} | config
    each = config.get("gradient_accumulation_steps") or 1
    with mesh or contextlib.nullcontext():
        model = model()
        if mesh:
            state = nnx.state(model)
            specs = nnx.get_partition_spec(state)
            nnx.update(model, jax.lax.with_sharding_constraint(state, specs))
        trainer = peft_trainer.PeftTrainer(
            model, tx, peft_trainer.TrainingConfig(**config)
        )
        trainer.with_loss_fn(loss)
        if hook:
            trainer.with_training_hooks(hook)
        trainer.train([{"x": x} for x in batches(steps * each)])
    return trainer


def params_of(trainer):
    return nnx.to_pure_dict(nnx.state(trainer.model, nnx.Param))


class TestPeftTrainer(Promises):
    @staticmethod
    def train(way):
        tx = WAYS[way](optax.adam(RATE))
        trainer = train(tx, hook=Tells() if way == "told" else None)
        return Trained.of(params_of(trainer), nnx.as_pure(trainer.optimizer.opt_state))


def by_hand(rate, gradients_of):
    """The parameters after `STEPS` steps of Adam on gradients_of(grad, params, t)."""
    tx = optax.adam(rate)
    params = jax.tree.map(jnp.asarray, params_of(train(tx, steps=0, mesh=None)))
    state, grads = tx.init(params), []
    for t in range(STEPS):
        grads.append(gradients_of(params, t))
        updates, state = tx.update(grads[max(t - 1, 0)], state, params)
        params = optax.apply_updates(params, updates)
    return params


def gradient(params, x):
    def error(params):
        y = jnp.tanh(x @ params["kernel"]) + params["bias"]
        return jnp.mean((y - 1.0) ** 2)

    return jax.grad(error)(params)


def assert_close(params, other):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        params,
        other,
    )


def test_delay_one_is_a_loop_of_jax_and_optax_alone():
    xs = batches(STEPS)
    trainer = train(dj.delayed(optax.adam(RATE), 1))
    assert_close(
        params_of(trainer), by_hand(RATE, lambda params, t: gradient(params, xs[t]))
    )


def test_a_delay_counts_updates_where_gradients_are_accumulated():
    """With two batches an update; the gradient is of the update before the last one."""
    xs = batches(2 * STEPS)

    def mean(params, t):
        pair = [gradient(params, x) for x in xs[2 * t : 2 * t + 2]]
        return jax.tree.map(lambda a, b: (a + b) / 2, *pair)

    trainer = train(dj.delayed(optax.adam(RATE), 1), gradient_accumulation_steps=2)
    assert_close(params_of(trainer), by_hand(RATE, mean))


@pytest.mark.parametrize("mesh", [None, MESH], ids=["one device", "mesh"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_delay_is_the_plain_optimizer_in_each_precision(dtype, mesh):
    def end(tx):
        return params_of(train(tx, mesh=mesh, model=lambda: Model(dtype=dtype)))

    jax.tree.map(
        np.testing.assert_array_equal,
        end(dj.delayed(optax.adamw(RATE), 0)),
        end(optax.adamw(RATE)),
    )


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("mesh", [None, MESH], ids=["one device", "mesh"])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, delay, mesh):
    kept = {
        "checkpoint_root_directory": str(tmp_path),
        "checkpointing_options": ocp.CheckpointManagerOptions(save_interval_steps=1),
    }
    tx = dj.delayed(optax.adam(RATE), delay)
    train(tx, steps=3, mesh=mesh, **kept)
    resumed = train(tx, steps=6, mesh=mesh, **kept)
    whole = train(tx, steps=6, mesh=mesh)
    for trainer in (resumed, whole):
        assert trainer.train_steps == 6
    jax.tree.map(np.testing.assert_array_equal, params_of(resumed), params_of(whole))


def test_adapters_alone_have_a_history():
    trainer = train(dj.delayed(optax.adam(RATE), 1), model=lambda: Model(nnx.LoRAParam))
    slots = trainer.optimizer.opt_state.gradients.slots
    assert set(slots) == {"kernel"}
    whole = train(optax.adam(RATE), steps=0)
    np.testing.assert_array_equal(trainer.model.bias[...], whole.model.bias[...])


@pytest.mark.parametrize(
    "tx",
    [
        dj.delayed(optax.inject_hyperparams(optax.adam)(learning_rate=RATE), 1),
        optax.inject_hyperparams(
            lambda learning_rate: dj.delayed(optax.adam(learning_rate), 1)
        )(learning_rate=RATE),
    ],
    ids=["inside", "outside"],
)
def test_the_trainer_finds_the_learning_rate(tx):
    assert float(train(tx)._try_get_learning_rate()) == pytest.approx(RATE)


def page_s_lines(number, **names):
    with MESH:
        names |= {"optax": optax, "model": Model()}
        names["config"] = peft_trainer.TrainingConfig(
            eval_every_n_steps=1000, max_steps=STEPS
        )
        exec(pages.lines("tunix", 0), names)
        if number == 1:
            exec(pages.lines("tunix", 1), names)
        trainer = names["trainer"].with_loss_fn(loss)
        trainer.train([{"x": x} for x in batches(STEPS)])
    return trainer.optimizer.opt_state


def test_the_page_s_first_lines_train():
    opt_state = page_s_lines(0)
    assert int(opt_state.gradients.pushed[...]) == STEPS
    assert int(opt_state.staleness[...]) == 1


def test_the_page_s_hook_tells_the_staleness():
    ages = iter(range(STEPS))
    opt_state = page_s_lines(1, measured=lambda: next(ages))
    assert int(opt_state.staleness[...]) == STEPS - 1
