"""Many trials at once train as `dj.replay` trains each, and as a list of versions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from experiments import tasks
from experiments.comparison import cures, studies, trials
from experiments.training.rules import data_seed

BUDGET, SEED = 60, 3
SETTING = trials.Setting(tasks.digits_mlp(batch_size=8, width=4), budget=BUDGET)
NAMED = {cure.name: cure for cure in cures.CURES}


def halfway(optimizer, cure, *, share=0.45):
    space = cure.whole_space(cures.OPTIMIZERS[optimizer])
    return {name: float(own.at(np.array(share))) for name, own in space.items()}


def trained(optimizer, cure, cluster, numbers):
    several = {name: np.array([own, 0.3 * own]) for name, own in numbers.items()}
    chosen = cures.OPTIMIZERS[optimizer]
    return SETTING.losses(chosen, cure, cluster, several, SEED)


def trial_of(optimizer, numbers, workers):
    return cures.Trial(
        optimizer=cures.OPTIMIZERS[optimizer],
        numbers={name: jnp.float32(own) for name, own in numbers.items()},
        shape=lambda step: 1.0,
        mean=jnp.int32(workers - 1),
        most=SETTING.most,
        loss=SETTING.server_loss,
    )


@pytest.mark.parametrize(
    ("optimizer", "rule", "cluster"),
    [
        ("adam", "DC-ASGD-a", "heavy tails, 16"),  # reads old parameters
        ("sgd", "DANA", "memoryless, 4"),  # reads workers
        ("sgd", "drop stale", "straggler, 4"),  # refuses
        ("muon", "late updates", "constant, 4"),  # has an output of its own
        ("adam", "average of the weights", "memoryless, 16"),
    ],
)
def test_a_training_is_a_replay_of_the_cluster(optimizer, rule, cluster):
    cure = NAMED[rule]
    numbers = halfway(optimizer, cure)
    workers = SETTING.clusters[cluster]
    trace = dj.cluster.simulate(
        workers, dj.cluster.protocols.k_batch_async(1), BUDGET, seed=SEED
    )
    grad_fn = jax.value_and_grad(SETTING.task.loss)
    tx = cure.make(trial_of(optimizer, numbers, workers.workers))
    training = dj.replay(trace, lambda x, batch, key: grad_fn(x, batch), tx)
    state = training.init(SETTING.task.init(jax.random.key(SEED)), jax.random.key(0))
    batches = SETTING.task.batches(data_seed(SEED), 0, BUDGET)
    state, _ = training.run(state, jax.tree.map(lambda leaf: leaf[:, None], batches))
    output = cure.output(state.params, state.opt_state)
    wanted = float(SETTING.task.evaluate(output)["train_loss"])
    ours = trained(optimizer, cure, cluster, numbers)
    assert ours[0] == pytest.approx(wanted, rel=1e-4)
    assert abs(ours[1] - ours[0]) > 1e-3 * wanted  # another trial is another training


def test_a_training_that_diverges_has_the_loss_that_it_began_with():
    begun = SETTING.task.init(jax.random.key(SEED))
    wanted = float(SETTING.task.evaluate(begun)["train_loss"])
    numbers = {"learning_rate": 1e9, "decay": 1.0}
    ours = trained("sgd", cures.BASELINE, "memoryless, 4", numbers)
    np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_a_rule_that_evaluates_more_gradients_makes_fewer_updates():
    counted = []

    def counting(trial):
        def update(updates, state, params=None):
            return updates, state + 1

        count = optax.GradientTransformation(lambda p: jnp.zeros((), jnp.int32), update)
        return optax.chain(optax.scale(0.0), count)

    for gradients in (1.0, 4 / 3):
        cure = cures.Cure(
            "counted",
            counting,
            shared=("learning_rate",),
            gradients=gradients,
            # the parameters that are evaluated say how many updates there were
            output=lambda params, state: jax.tree.map(
                lambda leaf: 0 * leaf + state[1] / BUDGET, params
            ),
        )
        counted.append(trained("sgd", cure, "constant, 4", {"learning_rate": 1.0})[0])

    def loss_of(updates):
        params = SETTING.task.init(jax.random.key(SEED))
        constant = jax.tree.map(lambda leaf: 0 * leaf + updates / BUDGET, params)
        return float(SETTING.task.evaluate(constant)["train_loss"])

    np.testing.assert_allclose(counted, [loss_of(60), loss_of(45)], rtol=1e-5)


RECORDED = studies.digits_recorded("full", cures.CURES).setting.clusters
CLUSTERS = trials.clusters() | dict(RECORDED)


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_clusters_have_the_mean_staleness_of_their_name(name):
    cluster = CLUSTERS[name]
    assert name == trials.NO_DELAY or name.endswith(f", {cluster.workers - 1}")
    protocol = dj.cluster.protocols.k_batch_async(1)
    trace = dj.cluster.simulate(cluster, protocol, 4000, seed=0)
    taus = trace.staleness[400:]
    # P - 1 in the mean, over many rounds of all workers
    np.testing.assert_allclose(taus.mean(), cluster.workers - 1, rtol=0.05)
    is_constant = name.startswith("constant") or name == trials.NO_DELAY
    assert (np.ptp(taus) == 0) == is_constant
    assert np.isfinite(dj.cluster.pareto(1 / 3, 1.5).mean)


def test_a_blind_twin_is_told_the_mean_and_the_parameters_of_then():
    told = []

    def telling(trial):
        def update(updates, state, params=None, *, staleness, stale_params, worker):
            told.append((int(staleness), float(stale_params), int(worker)))
            return updates, state

        return optax.GradientTransformationExtraArgs(lambda p: (), update)

    twin = cures.told_the_mean(cures.Cure("telling", telling))
    assert twin.name == "telling, told the mean"
    trial = trial_of("sgd", {"learning_rate": 1.0}, workers=3)
    tx = twin.make(trial)
    state = tx.init(jnp.float32(0.0))
    for t in range(5):
        _, state = tx.update(
            jnp.float32(1.0),
            state,
            jnp.float32(10.0 * t),
            staleness=99,
            stale_params=jnp.float32(-1.0),
            worker=7,
        )
    old = [0.0, 0.0, 0.0, 10.0, 20.0]  # of two updates before, from the third on
    assert told == [(2, x, t % 3) for t, x in enumerate(old)]
