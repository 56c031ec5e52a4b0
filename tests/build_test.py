import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from configs import default
from experiments import build, grid


def small_config():
    config = default.get_config()
    config.delay.value = (3,)
    config.delay.max_delay = 4
    return config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("opt.name", ("adm",), "config.opt.name must be among 'sgd'.*'adm'"),
        ("opt.name", (), "config.opt.name must not be empty"),
        ("opt.decay", "step", "config.opt.decay must be among.*'step'"),
        ("opt.adam.learning_rate", (float("nan"),), "learning_rate.0 must be finite"),
        ("opt.adam.b1", float("nan"), r"config\.opt\.adam\.b1 must be finite, got nan"),
        ("task.l2", float("inf"), r"config\.task\.l2 must be finite, got inf"),
        ("seeds", (0, 0.5), r"config.seeds must hold integers, got \(0, 0.5\)"),
        ("opt.adam.learning_rate", (-0.1,), "learning_rate must hold finite.*-0.1"),
        ("opt.adam.learning_rate", (0.1, 0.1), "must not repeat a value"),
        ("delay.law", ("pareto",), "config.delay.law must be among.*'pareto'"),
        ("delay.value", (-1,), "config.delay.value must hold finite.*-1"),
        ("delay.value", (1.5,), "must be whole for constant delays.*1.5"),
        ("delay.max_delay", -2, "max_delay must be non-negative, got -2"),
        ("delay.law", ("poisson",), "max_delay must be given for the law 'poisson'"),
        ("delay.warmup", "slow", "config.delay.warmup must be among.*'slow'"),
        ("delay.history_dtype", "int8", "history_dtype must be among.*'int8'"),
        ("delay.drop_above", -1, "drop_above must be non-negative, got -1"),
        ("modulation.law", ("sqrt",), "config.modulation.law must be among.*'sqrt'"),
        ("modulation.placement", ("inside",), "modulation.placement must be among"),
        ("compensation.name", ("taylor",), "compensation.name must be among.*'taylor'"),
        ("compensation.strength", (float("inf"),), "strength.0 must be finite.*inf"),
        ("seeds", (), "config.seeds must be a tuple with at least one number"),
        ("steps", 0, "config.steps must be at least 1, got 0"),
        ("steps", 70, "config.steps must be a multiple of config.chunk, got 70 and 50"),
        ("checkpoint_every", 70, "checkpoint_every must be a multiple of"),
        ("profile", (5, 2), r"config.profile must be \(start, stop\), got \(5, 2\)"),
    ],
)
def test_a_bad_config_is_refused_by_name(key, value, message):
    config = default.get_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=message):
        build.check(config)


ARMS = ("hardsync()", "k_async(1)")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cluster.arms", ("ksync",), r"config\.cluster\.arms: 'ksync' must be|'ksync'"),
        ("cluster.arms", ("hardsync()", "hardsync( )"), "must not repeat an arm"),
        ("trace", "log.csv", r"arms must be \(\) where config\.trace is given"),
        ("delay.drop_above", 3, "drop_above does nothing under config.cluster.arms"),
        ("delay.history_dtype", "bfloat16", "history_dtype does nothing under"),
        ("cluster.evaluations", 0, "cluster.evaluations must be at least 1, got 0"),
        ("cluster.seconds", -1.0, r"cluster.seconds must be non-negative, got -1\.0"),
        ("cluster.examples", -1, "cluster.examples must be non-negative, got -1"),
        ("cluster.bytes_per_second", -1.0, "bytes_per_second must be non-negative"),
        ("cluster.read_spread", 1.5, r"read_spread must lie in \[0, 1\], got 1\.5"),
        ("cluster.slow_factor", float("inf"), "cluster.slow_factor must be finite"),
        ("target.metric", "loss", "config.target.metric must be among.*'loss'"),
        ("select_by", "seconds_to_target", "target.value is 0, no target"),
        ("figures", ("pie",), "config.figures must be among.*'gantt'.*'pie'"),
    ],
)
def test_a_bad_config_of_arms_is_refused_by_name(key, value, message):
    config = default.get_config()
    config.cluster.arms = ARMS
    build.check(config)
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=message):
        build.check(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("modulation.law", ("capped",)),
        ("modulation.law", ("by_mean",)),
        ("select_by", "gradient_norm"),
        ("metric", "seconds_to_target"),
        ("figures", ("over_seconds",)),
    ],
)
def test_what_arms_alone_have_is_refused_without_them(key, value):
    config = default.get_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=f"config.{key} must be among"):
        build.check(config)
    config.cluster.arms = ARMS
    build.check(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("workers=0", "cluster.workers must be at least 1, got 0"),
        ("workers=-3", "cluster.workers must be at least 1, got -3"),
        ("workers=many", "'k_async.*workers=many': workers must be int, got 'many'"),
        ("evaluations=0", "cluster.evaluations must be at least 1, got 0"),
        ("slow_workers=9", "slow_workers must lie in 0 .. .* = 8, got 9"),
        ("slow_workers=3 workers=2", "slow_workers must lie in 0 .. .* = 2, got 3"),
        ("speeds=cubic", "speeds must be among 'equal', 'linear', 'sqrt', got 'cubic'"),
        ("read_spread=2.0", "read_spread must lie in .*got 2.0"),
        ("lr=0.1", "changes 'lr', but an arm can change"),
    ],
)
def test_a_bad_change_of_an_arm_is_refused_before_anything_is_simulated(
    change, message
):
    config = default.get_config()
    config.cluster.arms = ("hardsync()", f"k_async(1) {change}")
    with pytest.raises(ValueError, match=message):
        build.check(config)


def test_arms_have_chunks_of_their_own():
    config = default.get_config()
    config.steps = 70
    config.cluster.arms = ARMS
    build.check(config)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "is no task: 'digit'. There are digits_mlp"),
        ("nowhere.module:make", "'nowhere.module:make' cannot be imported"),
        ("experiments.grid:nothing", "'experiments.grid:nothing' cannot be imported"),
        ("builtins:str", "must return an experiments.tasks.task.Task, got str"),
    ],
)
def test_an_unknown_task_is_refused_by_name(name, message):
    config = default.get_config()
    config.task.name = name
    with pytest.raises(ValueError, match=message):
        build.task(config)


def test_a_target_that_is_not_evaluated_is_refused():
    config = default.get_config()
    config.task.name, config.metric = "quadratic", "train_loss"
    config.cluster.arms = ARMS
    config.target.metric, config.target.value = "test_accuracy", 0.9
    with pytest.raises(ValueError, match=r"target\.metric is 'test_accuracy', but"):
        build.task(config)
    config.target.metric = "gradient_norm"  # the runner's own
    build.task(config)


def one_update(tx, params, grads):
    state = tx.init(params)
    for grad in grads:
        updates, state = tx.update(grad, state, params)
        params = optax.apply_updates(params, updates)
    return params


OPTIMIZERS = {
    "sgd": optax.sgd(0.02),
    "adam": optax.adam(0.02),
    "adamw": optax.adamw(0.02, weight_decay=1e-4),
    "lion": optax.lion(0.02, b2=0.99, weight_decay=0.0),
    "muon": optax.contrib.muon(0.02, consistent_rms=0.2),
    "lars": optax.lars(0.02),
}


@pytest.mark.parametrize("name", build.OPTIMIZERS)
def test_an_optimizer_by_name_is_the_optimizer_by_hand(name):
    config = small_config()
    program = grid.Program(name, "none", "after")
    cell = grid.Cell(
        *map(jnp.float32, (0.02,)), jnp.int32(0), jnp.float32(3), jnp.int32(0), 0.0
    )
    tx = build.transformation(config, program, cell, jnp.int32(0))
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    grads = [
        jax.tree.map(
            lambda x, i=i: jnp.sin(i + jnp.arange(x.size)).reshape(x.shape), params
        )
        for i in range(6)
    ]
    expected = one_update(dj.delayed(OPTIMIZERS[name], 3, max_delay=4), params, grads)
    got = one_update(tx, params, grads)
    # 0.02 as a Python float and as a float32 scalar differ by rounding alone
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected
    )


def test_a_law_stands_where_the_placement_says():
    config = small_config()
    config.modulation.law = ("inverse",)
    cell = grid.Cell(jnp.float32(0.1), 0, jnp.float32(3), jnp.int32(0), 0.0)
    params, grads = jnp.ones(2), [jnp.ones(2)] * 4

    def moved(placement):
        tx = build.transformation(
            config, grid.Program("adam", "none", placement), cell, jnp.int32(0)
        )
        return params - one_update(tx, params, grads)

    # Adam's steps are 0.1 each; the staleness of the four updates is 0, 1, 2, 3
    np.testing.assert_allclose(moved("after"), 0.1 * (1 + 1 + 1 / 2 + 1 / 3), rtol=1e-4)
    # before Adam the same factors change the weights of the moments alone
    assert np.all(moved("before") > 0.35)


def test_the_learning_rate_warms_up_and_decays():
    config = small_config()
    config.opt.warmup_steps, config.opt.decay, config.steps = 10, "cosine", 100
    cell = grid.Cell(jnp.float32(2.0), 0, jnp.float32(3), 0, 0.0)
    rate = build.learning_rate(config, cell)
    np.testing.assert_allclose(rate(0), 2.0 * 0.1, rtol=1e-6)
    np.testing.assert_allclose(
        rate(50), 2.0 * 0.5 * (1 + np.cos(np.pi * 0.5)), rtol=1e-6
    )


def test_uniform_delays_reach_twice_their_mean_and_fix_the_depth():
    config = default.get_config()
    config.delay.law, config.delay.value = ("constant", "uniform"), (2, 5)
    assert build.max_delay(config) == 10
    cell = grid.Cell(0.1, jnp.int32(1), jnp.float32(5), 0, 0.0)
    delay = build.delay(config, cell, jnp.int32(0))
    draws = jax.vmap(delay)(jnp.arange(500))
    assert set(np.unique(draws)) == set(range(11))


def test_replicates_draw_delays_apart():
    config = default.get_config()
    config.delay.law, config.delay.max_delay = ("geometric",), 64
    cell = grid.Cell(0.1, jnp.int32(0), jnp.float32(8), 0, 0.0)
    draws = [
        jax.vmap(build.delay(config, cell, jnp.int32(seed)))(jnp.arange(50))
        for seed in (0, 1)
    ]
    assert not np.array_equal(*draws)
