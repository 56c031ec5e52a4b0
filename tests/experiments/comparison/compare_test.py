"""The comparison is an experiment: its rows train as `dj.replay` does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import delayjax as dj
from experiments import Run, Search, report, run, tasks
from experiments.comparison import clusters, rules, studies
from experiments.comparison.clusters import NO_DELAY
from experiments.comparison.compare import compare, gain_tables
from experiments.running.programs import programs
from experiments.running.trainer import Trainer
from experiments.training.jobs import data_seed
from tests.experiments.figures.runs import made
from tests.support.cases import shortened
from tests.support.training_runs import final_loss

pytestmark = pytest.mark.runs

UPDATES, SEED = 60, 3
TASK = tasks.digits_mlp(batch_size=8, width=4)
NAMED = {rule.name: rule for rule in rules.RULES}
LATE = clusters.clusters()
MOST = max(cluster.workers for cluster in LATE.values())


def of(rule, optimizer="sgd", **options):
    optimizers = {optimizer: rules.OPTIMIZERS[optimizer]}
    options = {"clusters": LATE, "updates": UPDATES, "seeds": (SEED,)} | options
    return compare([rule], TASK, optimizers, **options)


def programs_of(rule, cluster, optimizer="sgd"):
    """{rule: its program} on one cluster, if the largest program fits beside it."""
    both = {name: LATE[name] for name in (cluster, "heavy tails, 16")}
    return {
        program.columns["rule"]: program
        for program in programs(of(rule, optimizer, clusters=both))
        if program.settings()[0]["cluster"] == cluster
    }


def trained(program, points):
    """The training loss at the end, for each point."""
    cells = [program.rows[0] | point for point in points]
    trainer = Trainer(program.with_cells(cells).evaluated_once())
    return np.asarray(final_loss(trainer)[0])


def amid(space, share=0.45):
    numbers = {}
    for name, one in space.items():
        low, high = one.ends
        numbers[name] = one.value(low + share * (high - low))
    return numbers


def trial_of(optimizer, numbers, workers):
    batch = jax.tree.map(lambda leaf: leaf[0], TASK.batches(0, 0, 1))
    return rules.Trial(
        optimizer=rules.OPTIMIZERS[optimizer],
        numbers={name: jnp.float32(number) for name, number in numbers.items()},
        shape=lambda step: 1.0,
        mean=jnp.int32(workers - 1),
        most=MOST,
        updates=UPDATES,
        loss=lambda params: TASK.loss(params, batch),
    )


@pytest.mark.parametrize(
    ("optimizer", "name", "cluster"),
    [
        ("adam", "DC-ASGD-a", "heavy tails, 16"),  # reads stale parameters
        ("sgd", "DANA", "memoryless, 4"),  # reads the workers
        ("sgd", "drop stale", "straggler, 4"),  # refuses gradients
        ("muon", "late updates", "constant, 4"),  # its output is not its parameters
        ("adam", "average of the weights", "memoryless, 16"),
    ],
)
def test_a_training_is_a_replay_of_the_cluster(optimizer, name, cluster):
    rule = NAMED[name]
    numbers = amid(rule.whole_space(rules.OPTIMIZERS[optimizer]))
    other = {name: 0.3 * number for name, number in numbers.items()}
    program = programs_of(rule, cluster, optimizer)[name]
    ours = trained(program, [numbers, other])
    (trace,) = program.job.traces
    grad_fn = jax.value_and_grad(TASK.loss)
    tx = rule.make(trial_of(optimizer, numbers, LATE[cluster].workers))
    training = dj.replay(trace, lambda x, batch, key: grad_fn(x, batch), tx)
    start = TASK.init(jax.random.fold_in(jax.random.key(0), SEED))
    state = training.init(start, jax.random.key(0))
    batches = TASK.batches(data_seed(SEED), 0, UPDATES)
    state, _ = training.run(state, jax.tree.map(lambda leaf: leaf[:, None], batches))
    output = rule.output(state.params, state.opt_state)
    wanted = float(TASK.evaluate(output)["train_loss"])
    assert ours[0] == pytest.approx(wanted, rel=1e-4)
    assert abs(ours[1] - ours[0]) > 5e-4 * wanted  # another point is another training


def test_a_rule_that_evaluates_more_gradients_makes_fewer_updates():
    arms = of(NAMED["guided"]).arms
    assert {arm.labels["rule"]: arm.updates for arm in arms} == {
        "plain": 60,
        "guided": 45,  # each update has 4/3 gradients
    }


CLUSTERS = LATE | clusters.recorded()


@pytest.mark.parametrize("name", list(CLUSTERS))
def test_clusters_have_the_mean_staleness_of_their_name(name):
    cluster = CLUSTERS[name]
    assert name == NO_DELAY or name.endswith(f", {cluster.workers - 1}")
    protocol = dj.cluster.protocols.k_batch_async(1)
    trace = dj.cluster.simulate(cluster, protocol, 4000, seed=0)
    taus = trace.staleness[400:]
    # P - 1 on average, over many rounds of all workers
    np.testing.assert_allclose(taus.mean(), cluster.workers - 1, rtol=0.05)
    is_constant = name.startswith("constant") or name == NO_DELAY
    assert (np.ptp(taus) == 0) == is_constant


def test_rows_are_trained_where_they_are_more_than_another_step():
    def clusters_of(rule):
        (arm,) = (a for a in of(rule).arms if a.labels["rule"] == rule.name)
        return set(arm.grid["cluster"])

    assert clusters_of(NAMED["clipping"]) == set(LATE)  # it may help without delay, too
    assert clusters_of(NAMED["Gap-Aware"]) == set(LATE) - {NO_DELAY}
    late = {name for name in LATE if not name.startswith("constant")}
    assert clusters_of(NAMED["inverse law"]) == late - {NO_DELAY}


def test_a_row_contains_plain_delay_if_it_can_switch_its_numbers_off():
    result = {name: rule.contained() for name, rule in NAMED.items()}
    of_plain, of_none = {"rule": "plain"}, {"rule": "no momentum"}
    assert result["DC-ASGD-a"] == result["clipping"] == result["hinge law"] == of_plain
    assert result["late updates"] is result["adaptive 1"] is result["Gap-Aware"] is None
    assert result["one slow momentum"] == of_none
    assert result["plain"] == {**of_none, "decay": 1.0}
    # the row that this row extends may be missing
    (plain, slow) = of(NAMED["one slow momentum"]).arms
    assert plain.contains is slow.contains is None


OFF = [
    rule
    for rule in rules.RULES
    if rule.contained() == {"rule": "plain"}
    and rule.optimizers is None
    and rule.gradients == 1
]


@pytest.mark.parametrize(
    "name",
    shortened([rule.name for rule in OFF], "DC-ASGD-a", "capped law", "drop stale"),
)
def test_a_row_whose_numbers_are_off_is_plain_delay(name):
    rule = NAMED[name]
    numbers = amid(rules.OPTIMIZERS["sgd"].space)
    plain, program = programs_of(rule, "memoryless, 4").values()
    offs = {name: one.off for name, one in rule.space.items()}
    (wanted,), (result,) = trained(plain, [numbers]), trained(program, [numbers | offs])
    assert result == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("optimizer", list(rules.OPTIMIZERS))
def test_plain_delay_at_the_momentum_that_it_says_is_no_momentum(optimizer):
    plain, none = programs_of(NAMED["no momentum"], "constant, 4", optimizer).values()
    ((_, values),) = plain.contains.items()
    numbers = amid({"learning_rate": rules.OPTIMIZERS[optimizer].learning_rate})
    (wanted,), (result,) = trained(none, [numbers]), trained(plain, [numbers | values])
    assert result == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("stage", list(studies.STAGES))
@pytest.mark.parametrize("name", list(studies.STUDIES))
def test_each_study_is_an_experiment_at_each_stage(name, stage):
    study, length = studies.STUDIES[name], studies.STAGES[stage]
    (optimizer, tolerance), *_ = study.tolerance.items()
    rows = [NAMED["late updates"], NAMED["clipping"]]
    experiment = studies.experiment(study, length, rows, (optimizer,))
    clusters = {arm.labels["rule"]: set(arm.grid["cluster"]) for arm in experiment.arms}
    late = {*study.clusters()} if length.all_clusters else {*study.few}
    # plain delay is trained without delay, too, to measure the cost of lateness
    assert clusters["plain"] == late | {NO_DELAY}
    assert clusters["late updates"] == late - {NO_DELAY}
    assert (NO_DELAY in clusters["clipping"]) == length.undelayed
    assert {arm.updates for arm in experiment.arms} == {length.horizon * study.updates}
    assert experiment.search.tolerance == tolerance
    with pytest.raises(ValueError, match=r"`optimizers` must be among .*'lion'"):
        studies.experiment(study, length, rows, ("lion",))


def test_two_optimizers_have_the_smaller_tolerance():
    both = ("sgd", "muon")
    digits = studies.STUDIES["digits"]
    short = studies.experiment(digits, studies.STAGES["short"], [], both)
    assert short.search.tolerance == min(digits.tolerance[name] for name in both)


def test_a_rule_of_a_user_is_compared_with_plain_delay(tmp_path):
    half = rules.Rule("half", lambda t: t.descent(after=[optax.scale(0.5)]))
    mine = compare(
        [half],
        tasks.quadratic((1.0,), noise=0.3),
        {"sgd": rules.OPTIMIZERS["sgd"]},
        clusters=clusters.some("memoryless, 4"),
        updates=20,
        search=Search(seeds=3, repeats=1, tolerance=0.05),
    )
    result = run(mine, str(tmp_path))
    (row,) = result.gains("plain").to_dict("records")
    # it is only another step
    assert row["rule"] == "half" and row["found"] and abs(row["gain"]) < 0.1
    assert row["low"] <= row["gain"] <= row["high"] and row["settings"] == 1
    # the report has the gains, even if nobody asked for a table
    report.write(Run.read(tmp_path), mine)
    for name, column in (("gains", []), ("gains_by_cluster", ["cluster"])):
        (shown,) = pd.read_csv(tmp_path / f"{name}.csv").to_dict("records")
        assert shown["gain"] == pytest.approx(row["gain"])
        assert {"optimizer", *column} <= set(shown)


def test_the_gains_of_clusters_are_those_of_losses_made_by_hand(tmp_path):
    """The mean over the late clusters; the cluster without delay does not count."""
    gain = {NO_DELAY: 7.0, "memoryless, 4": 0.1, "memoryless, 16": 0.5}

    def loss(optimizer, rule, cluster, seed):
        return 1.0 + 0.1 * seed - (gain[cluster] if rule == "half" else 0.0)

    names = dict(optimizer=("sgd",), rule=("plain", "half"), cluster=(*gain,))
    made_by_hand = made(tmp_path, loss, **names)
    late, each = gain_tables([*gain])
    assert late.make(made_by_hand)["gain"].tolist() == pytest.approx([0.3])
    table = each.make(made_by_hand)
    assert dict(zip(table.cluster, table.gain, strict=True)) == pytest.approx(gain)
    (each,) = gain_tables([NO_DELAY])
    assert each.name == "gains_by_cluster"


def test_a_blind_twin_receives_the_mean_staleness_and_the_parameters_of_then():
    calls = []

    def telling(trial):
        def update(updates, state, params=None, *, staleness, stale_params, worker):
            calls.append((int(staleness), float(stale_params), int(worker)))
            return updates, state

        return optax.GradientTransformationExtraArgs(lambda p: (), update)

    twin = rules.delay_blind_twin(rules.Rule("telling", telling))
    assert twin.name == "telling, delay-blind twin"
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
    old = [0.0, 0.0, 0.0, 10.0, 20.0]  # two updates old, from the third update on
    assert calls == [(2, x, t % 3) for t, x in enumerate(old)]
