"""The stored tables: a loop that shares no code with them gives the same losses."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import delayjax as dj
from experiments.comparison import clusters, rules, studies, tables, verdicts

pytestmark = pytest.mark.runs

ROOT = Path(__file__).parents[3]
STORED = ROOT / "experiments" / "comparison" / "stored"


SEEDS = {"cnn": 8}
"""How many seeds may show the stored loss, by study; else the first one must.

The cnn amplifies rounding: learning rates that are a millionth apart give losses of one
seed that are up to 0.4 times apart, and other seeds agree to 1e-6.
"""


def sgd(grads, old, state, numbers, **_):
    """m = beta m + (1 - beta) g."""
    decay = numbers["decay"]
    moment = state or jax.tree.map(jnp.zeros_like, grads)
    moment = jax.tree.map(lambda m, g: (1 - decay) * m + decay * g, moment, grads)
    return moment, moment


def slow(grads, old, state, numbers, **_):
    """g + share (m - g), with m of `sgd`."""
    moment, state = sgd(grads, old, state, numbers)
    share = numbers["rule_number"]
    return jax.tree.map(lambda g, m: g + share * (m - g), grads, moment), state


def compensated(grads, old, state, numbers, *, params):
    """DC-ASGD-c: g + lam g g (x - x_old), then SGD."""
    lam = numbers["rule_number"]
    corrected = jax.tree.map(
        lambda g, x, y: g + lam * g * g * (x - y), grads, params, old
    )
    return sgd(corrected, old, state, numbers)


def clipped(grads, old, state, numbers, **_):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, numbers["rule_number"] / norm)
    return sgd(jax.tree.map(lambda g: g * scale, grads), old, state, numbers)


def by_age(grads, old, state, numbers, *, age, **_):
    """SGD with the polynomial law: a step of age tau is multiplied by (1 + tau)^-a."""
    step, state = sgd(grads, old, state, numbers)
    factor = (1.0 + age) ** -numbers["rule_number"]
    return jax.tree.map(lambda u: u * factor, step), state


def adam(grads, old, state, numbers, **_):
    """m / (sqrt(v) + 1e-8), both averages bias-corrected, beta2 = 0.999."""
    b1, b2 = 1 - numbers["decay"], 0.999
    zeros = jax.tree.map(jnp.zeros_like, grads)
    m, v, count = state or (zeros, zeros, 0)
    count = count + 1
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, grads)
    step = jax.tree.map(
        lambda m, v: m / (1 - b1**count) / (jnp.sqrt(v / (1 - b2**count)) + 1e-8), m, v
    )
    return step, (m, v, count)


def orthogonal(x):
    """Five steps of Newton and Schulz, after which all singular values are near 1."""
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (jnp.sqrt(jnp.sum(x**2)) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if is_tall else x


def muon(grads, old, state, numbers, **_):
    """Nesterov's momentum, orthogonal, of RMS 0.2; vectors have Adam with beta 0.9."""
    zeros = jax.tree.map(jnp.zeros_like, grads)
    m, v, count = state or (zeros, zeros, 0)
    count = count + 1

    def betas(leaf):
        return 1 - numbers["decay"] if leaf.ndim == 2 else 0.9

    m = jax.tree.map(lambda m, g: betas(g) * m + (1 - betas(g)) * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)

    def direction(m, v, g):
        b = betas(g)
        ahead = b * m / (1 - b ** (count + 1)) + (1 - b) * g / (1 - b**count)
        if g.ndim == 2:
            return 0.2 * max(g.shape) ** 0.5 * orthogonal(ahead)
        return ahead / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return jax.tree.map(direction, m, v, grads), (m, v, count)


def traced(cluster, updates, seed):
    protocol = dj.cluster.protocols.k_batch_async(1)
    by_name = clusters.clusters()[cluster]
    return dj.cluster.simulate(by_name, protocol, updates, seed=seed)


def trained(task, trace, params, order, numbers, direction):
    """The parameters after one gradient an update, taken at parameters of its age."""
    updates = len(trace.read_version)
    batches = task.batches(order, 0, updates)
    gradient, step = jax.jit(jax.grad(task.loss)), jax.jit(direction)
    versions, state = [params], None
    for t in range(updates):
        age = t - int(trace.read_version[t])
        old = versions[t - age]
        grads = gradient(old, jax.tree.map(lambda leaf, t=t: leaf[t], batches))
        options = {"age": age} if direction is by_age else {}
        options |= {"params": params} if direction is compensated else {}
        options |= {"share": t / updates} if direction is decayed else {}
        update, state = step(grads, old, state, numbers, **options)
        params = jax.tree.map(
            lambda x, u: x - numbers["learning_rate"] * u, params, update
        )
        versions.append(params)
    return params


def decayed(grads, old, state, numbers, *, share):
    """SGD; the step size falls linearly from the first update to 0 after the last."""
    step, state = sgd(grads, old, state, numbers)
    return jax.tree.map(lambda u: u * (1 - share), step), state


KEYS = ["optimizer", "rule", "cluster"]
CELLS = [
    ("digits", "sgd", "plain", "constant, 4", sgd),
    ("digits", "sgd", "linear decay", "memoryless, 16", decayed),
    ("digits", "sgd", "one slow momentum", "memoryless, 4", slow),
    ("digits", "sgd", "DC-ASGD-c", "constant, 4", compensated),
    ("digits", "sgd", "clipping", "memoryless, 16", clipped),
    ("digits", "adam", "plain", "memoryless, 4", adam),
    ("digits", "muon", "plain", "memoryless, 16", muon),
    ("char_lm", "adam", "plain", "memoryless, 4", adam),
    ("char_lm", "adam", "plain", "constant, 4", adam),
    ("char_lm", "adam", "no momentum", "memoryless, 16", adam),
    ("cnn", "adam", "plain", "constant, 4", adam),
    ("cnn", "sgd", "plain", "constant, 4", sgd),
    ("cnn", "sgd", "polynomial law", "memoryless, 4", by_age),
]
SHORT = {
    name: studies.stored(name, "short")
    for name in studies.STUDIES
    if tables.file(name, "short").exists()
}
THERE = [
    cell
    for cell in CELLS
    if cell[0] in SHORT
    and {cell[1:4]}
    <= {*SHORT[cell[0]].results[KEYS].itertuples(index=False, name=None)}
]


@pytest.mark.parametrize(("study", "optimizer", "rule", "cluster", "direction"), THERE)
def test_a_list_of_past_parameters_trains_to_the_stored_loss(
    study, optimizer, rule, cluster, direction
):
    errors = []
    for seed in range(SEEDS.get(study, 1)):
        cell = dict(zip(KEYS, (optimizer, rule, cluster), strict=True), seed=seed)
        (row,) = SHORT[study].where(**cell).results.to_dict("records")
        numbers = {"decay": 1.0} | {
            name: row[name]
            for name in ("learning_rate", "decay", "rule_number")
            if pd.notna(row.get(name))
        }
        task = studies.STUDIES[study].task()
        order = int(np.random.SeedSequence([0, seed]).generate_state(1)[0])
        trace = traced(cluster, studies.STUDIES[study].updates, order)
        start = task.init(jax.random.fold_in(jax.random.key(0), seed))
        params = trained(task, trace, start, order, numbers, direction)
        losses = task.evaluate(params)
        both = ("train_loss", "test_loss")
        errors.append(max(abs(float(losses[name]) / row[name] - 1) for name in both))
        if errors[-1] <= 1e-4:
            break
    assert min(errors) <= 1e-4


@pytest.mark.parametrize("study", SHORT)
def test_halves_of_the_seeds_agree_on_the_order_of_rows_outside_of_the_band(study):
    result = SHORT[study]
    assert verdicts.order_agrees(result, least=tables.inexact(result)) >= 0.8


def test_each_rule_has_its_costs():
    costs = pd.read_csv(STORED / "costs.csv", comment="#").set_index("rule")
    blind = (rules.BASELINE, rules.AGAIN)
    assert {*costs.index} == {one.name for one in rules.RULES if one not in blind}
    # a momentum for each of 5 workers, in place of one
    assert round(costs.loc["DANA", "more memory"]) == 4
