"""Compositions: each row of docs/composes.md is built, run and measured.

Write the page again with `python -m tests.composes_test`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import delayjax as dj
from tests.exchange.driving import fed

PAGE = Path(__file__).parents[1] / "docs" / "composes.md"
DELAY, STEPS = 64, 70
PARAMS = {"w": jnp.linspace(-1.0, 1.0, 3000), "b": jnp.ones(3)}

INSIDE = {
    "optax.adam(0.01)": "",
    "optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.01))": "",
    "optax.contrib.muon(0.01)": "",
    "optax.contrib.schedule_free(optax.sgd(0.01), 0.01)": "",
    "optax.inject_hyperparams(optax.adam)(0.01)": "",
    "optax.masked(optax.adam(0.01), {'w': True, 'b': False})": "",
    "optax.partition({'w': optax.adam(0.01), 'b': optax.sgd(0.1)}, "
    "{'w': 'w', 'b': 'b'})": "each part reads its own stale parameters",
    "optax.MultiSteps(optax.adam(0.01), 4)": (
        "the staleness is the age of the gradient which completes the mean"
    ),
    "optax.apply_if_finite(optax.adam(0.01), 3)": (
        "a gradient that is not finite is refused when it arrives"
    ),
    "optax.contrib.reduce_on_plateau()": "`value=` stays with its gradient",
    "optax.polyak_sgd()": "`value=` stays with its gradient",
    "optax.contrib.momo(0.1)": "`value=` stays with its gradient",
    "optax.contrib.dowg()": (
        "its rate is the distance from the first parameters, at first 0.01, so a"
        " rounding of parameters of 10 changes all of its steps by about 1e-4: an eager"
        " loop and a compiled one differ by that, with a delay and without"
    ),
    "optax.chain(dj.compensate_delay(0.1), optax.adam(0.01))": "",
    "optax.chain(dj.gap_aware(0.01), optax.sgd(0.01))": "",
    "dj.yellowfin(closed_loop=True)": "",
    "dj.closed_loop_momentum(0.01, 0.9)": "",
    "optax.chain(optax.adam(0.01), dj.scale_by_staleness(dj.modulation.inverse))": (
        "the law scales the learning rate"
    ),
    "optax.chain(dj.scale_by_staleness(dj.modulation.inverse), optax.adam(0.01))": (
        "does nothing at a constant delay: Adam divides the factor out again"
    ),
    "optax.chain(optax.sgd(0.01, 0.9), dj.correct_late_updates())": "",
    "dj.drop_stale(optax.adam(0.01), 4)": "",
    "optax.chain(optax.scale_by_adam(), dj.step_sizes.share_of_budget(0.1, 64))": (
        "in place of the learning rate"
    ),
    "optax.chain(optax.scale_by_adam(),"
    " dj.step_sizes.inverse_within_budget(0.1, 64))": ("in place of the learning rate"),
    "dj.step_sizes.adadelay(10.0, 1.0, per_coordinate=True)": (
        "in place of the optimizer"
    ),
    "optax.chain(optax.trace(0.9), dj.step_sizes.distance_capped(0.01, 1.0))": (
        "in place of the learning rate"
    ),
    "optax.chain(dj.step_sizes.dasa(0.01, 100.0), optax.adam(0.01))": "",
    "dj.step_sizes.dasgd(dj.step_sizes.harmonic(0.1, logarithms=1))": (
        "in place of the optimizer"
    ),
    "dj.delayed(optax.adam(0.01), 2, keep_params=True)": "ages add",
    "dj.delivered(optax.adam(0.01), 2, keep_params=True)": "ages add",
    "optax.chain(dj.guided(optax.tree.norm), optax.sgd(0.01))": (
        "`value=` stays with its gradient"
    ),
    "optax.lookahead(optax.sgd(0.01), 5, 0.5)": "",
    "optax.contrib.sam(optax.sgd(0.01), optax.sgd(0.05))": "",
    "optax.lbfgs()": "",
    "optax.chain(optax.sgd(0.1), optax.scale_by_backtracking_linesearch(5))": "",
}
"""What stands in `delayed(..., 64)`, and a remark."""

OUTSIDE = {
    "dj.inject_staleness({})": "the staleness in the state is added",
    "optax.chain(optax.clip_by_global_norm(1.0), {})": "",
    "optax.masked({}, {{'w': True, 'b': False}})": "",
    "optax.partition({{'w': {}, 'b': optax.sgd(0.1)}}, {{'w': 'w', 'b': 'b'}})": (
        "each part has a history of its own"
    ),
    "optax.inject_hyperparams(lambda rate: dj.delayed(optax.adam(rate), 64))(0.01)": "",
    "optax.apply_if_finite({}, 3)": (
        "a gradient that is not finite never enters the history"
    ),
    "optax.MultiSteps({}, 4)": "the delay counts means, not gradients",
    "dj.drop_stale({}, 4)": "needs `staleness=` from outside",
}
"""What stands around `delayed(optax.adam(0.01), 64)`."""


WORKERS = {
    "dj.exchange.mean(optax.MultiSteps(optax.adam(0.01), 4))": "",
    "dj.exchange.mean(optax.apply_if_finite(optax.adam(0.01), 3))": (
        "all workers refuse together"
    ),
    "dj.averaging.outer(optax.MultiSteps(optax.adam(0.01), 4), optax.sgd(0.7),"
    " period=20)": "`period` counts microbatches: a multiple of 4",
    "dj.averaging.outer(optax.contrib.mechanize(optax.adam(0.01)), optax.sgd(0.7),"
    " period=20)": "",
    "dj.averaging.outer(optax.apply_if_finite(optax.adam(0.01), 3), optax.sgd(0.7),"
    " period=20)": "each worker would branch for itself: use `dj.refusing`, as below",
    "optax.MultiSteps(dj.exchange.mean(optax.adam(0.01)), 4)": (
        "the exchange would be in a branch: put it outside"
    ),
    "optax.apply_if_finite(dj.exchange.mean(optax.adam(0.01)), 3)": (
        "the exchange would be in a branch: put it outside"
    ),
}
"""Optimizers of workers that have branches, and a remark."""

SCHEDULE_FREE = """
To evaluate `schedule_free`, give its function the state inside of `delayed`:

```python
>>> import jax, jax.numpy as jnp, optax
>>> import delayjax as dj
>>> params = jnp.ones(3)
>>> tx = dj.delayed(optax.contrib.schedule_free(optax.sgd(0.5), 0.5), 64)
>>> updates, state = tx.update(params, tx.init(params), params)
>>> params = optax.apply_updates(params, updates)
>>> optax.contrib.schedule_free_eval_params(state.inner_state, params)
Array([0.5, 0.5, 0.5], dtype=float32)

```
"""

ACCUMULATING = """
The other methods of `averaging` do as `outer`. Here workers of DiLoCo accumulate two
gradients, and each skips its gradients that are not finite:

```python
>>> def finite(grads, memory, params, **extra_args):
...     return jnp.isfinite(optax.tree.norm(grads)), grads, memory
>>> accumulating = optax.MultiSteps(optax.adamw(4e-4), 2)
>>> tx = dj.averaging.outer(
...     dj.refusing(accumulating, finite), optax.sgd(0.7, momentum=0.9), period=4)
>>> def step(state, batch):
...     params, opt_state = state
...     grads = jax.grad(lambda x: jnp.sum((x - batch) ** 2))(dj.workers.vary(params))
...     updates, opt_state = tx.update(grads, opt_state, params)
...     return (optax.apply_updates(params, updates), opt_state), {}
>>> islands = dj.workers.simulate(step, 2)
>>> batches = jnp.zeros((8, 2, 3)).at[1, 0].set(jnp.nan)  # of 8 steps and 2 workers
>>> start = jnp.ones(3)
>>> held = islands.init((start, tx.init(start)), batches[0], shared=False)
>>> held, _ = jax.jit(lambda held, xs: jax.lax.scan(islands.step, held, xs))(
...     held, batches)
>>> held.state[1].inner_state.dropped
Array([1, 0], dtype=int32)

```
"""


def made(code):
    return eval(code, {"dj": dj, "optax": optax})


KEEP = "with `keep_params=True`"


def inside(code):
    return f"dj.delayed({code}, 64)"


def keeping(code):
    return code.removesuffix(")") + ", keep_params=True)"


def outside(code):
    return code.format("dj.delayed(optax.adam(0.01), 64)")


def outcome(code):
    """(works or refused, last staleness, history in place or copied, the reason)."""
    try:
        tx = made(code)
        pairs = optax.LookaheadParams.init_synced(PARAMS)
        tx.init(pairs if "lookahead" in code else PARAMS)
    except ValueError as error:
        return "refused", "", "", str(error).split(": ", 1)[1].rstrip(".")
    needs_age = code.startswith("dj.drop_stale")

    def step(params, state, t):
        extra_args = {"staleness": t.astype(jnp.int32) % 3} if needs_age else {}
        grads = jax.tree.map(lambda p: jnp.cos(p * (t + 1)), params)
        updates, state = tx.update(
            grads, state, params, value=1.0 + 0.1 * t, obj_fn=None, **extra_args
        )
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.copy, PARAMS)
    state = tx.init(params)
    program = (
        jax.jit(step, donate_argnums=(0, 1))
        .lower(params, state, jnp.float32(0))
        .compile()
    )
    for t in range(STEPS):
        params, state = program(params, state, jnp.float32(t))
    finite = all(jnp.isfinite(x).all() for x in jax.tree.leaves(params))
    assert finite, code
    copied = program.cost_analysis()["bytes accessed"] > DELAY * PARAMS["w"].nbytes
    ages = sorted({int(x) for x in jax.tree.leaves(dj.staleness(state))})
    ages = ", ".join(map(str, ages))
    return "works", ages, "copied at each step" if copied else "in place", ""


def rows(table, whole, shown=str):
    for code, remark in table.items():
        try:
            works, ages, history, reason = outcome(whole(code))
        except TypeError as error:  # the message says that it needs keep_params=True
            assert "keep_params=True" in str(error)
            works, ages, history, reason = outcome(keeping(whole(code)))
            remark = f"{KEEP}; {remark}" if remark else KEEP
        yield f"| `{shown(code)}` | {works} | {ages} | {history} | {remark or reason} |"


def among_workers(code):
    """Whether two workers may take steps of it."""
    tx = made(code)
    params, grads = jnp.ones(3), jnp.ones((2, 3))
    workers = dj.workers.simulate(fed(tx), 2)
    try:
        workers.init((params, tx.init(params)), grads, shared=False)
    except (TypeError, ValueError):
        return "refused"
    return "works"


def page():
    head = "| | | staleness | history | |\n|---|---|---|---|---|"
    return "\n".join(
        [
            "# What composes with what",
            "",
            "This page is written by the test that runs each row: a donated, compiled",
            f"step, {STEPS} times. Each row is inside of `dj.delayed(row, {DELAY})`,",
            f"or of `dj.delayed(row, {DELAY}, keep_params=True)` where it says so.",
            "*Staleness* is `dj.staleness(state)` after the last step. *History*",
            "says whether the compiled step writes one gradient in place or copies",
            "all of them.",
            "",
            "## Inside of `delayed`",
            "",
            head,
            *rows(INSIDE, inside),
            SCHEDULE_FREE,
            "## Around `delayed`",
            "",
            f"`delayed` means `dj.delayed(optax.adam(0.01), {DELAY})`.",
            "",
            head,
            *rows(OUTSIDE, outside, lambda code: code.format("delayed")),
            "",
            "## Branches and workers",
            "",
            "An optimizer with branches (`jax.lax.cond`) must be inside of the",
            "exchange. Each row is the optimizer of two workers, in `simulate`.",
            "",
            "| | | |\n|---|---|---|",
            *(f"| `{c}` | {among_workers(c)} | {x} |" for c, x in WORKERS.items()),
            ACCUMULATING,
            "For a workers axis, [workers.md](workers.md) has the order of `delayed`",
            "and `exchange`.",
            "",
        ]
    )


def test_the_page_says_what_happens():
    written = PAGE.read_text()
    assert page() == written, "write it anew: python -m tests.composes_test"


if __name__ == "__main__":
    PAGE.write_text(page())
