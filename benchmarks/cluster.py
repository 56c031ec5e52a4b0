"""The costs of simulating a cluster, and of training along its trace.

    python -m benchmarks.cluster

First the event loop: microseconds per gradient under every protocol, for 8, 1,000 and
100,000 workers, and the seconds for a million gradients of 1,000 workers. Then training
along traces of 8, 1,000 and 100,000 workers, whose staleness is cut at 64, with 1 and
15 gradients per update, and along a trace of 17 workers with a heavy tail, whose
largest staleness is at least 10 P. Training takes turns with

    fresh scan   a `lax.scan` of SGD that averages as many gradients at one version
    union scan   a `lax.scan` of SGD with one gradient of all these examples
    fused step   a Python loop over events, one jitted step that reads, differentiates
                 and updates
    eager loop   a Python loop over events, one jitted gradient, Optax called eagerly

The table also has the MiB of the versions in the state, and of all other memory that
training needs. The heavy tail alone:

    python -m benchmarks.cluster --gradients=0 --workers 17
"""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from benchmarks.side_by_side import Run, heading, medians
from experiments import tasks

RATE = 0.01
BOUND = 64  # of the staleness, in updates
HEAVY = 17  # workers with a heavy tail


def protocols(workers: int) -> dict[str, Any]:
    """{name: protocol} of all protocols, at sizes that suit this number of workers."""
    p = dj.cluster.protocols
    some, few = max(workers // 2, 1), max(workers // 10, 1)
    return {
        "hardsync": p.hardsync(),
        "n_softsync(P/10)": p.n_softsync(few),
        "k_sync(P/2)": p.k_sync(some),
        "k_batch_sync(P/2)": p.k_batch_sync(some),
        "k_async(1)": p.k_async(1),
        "k_async(P/2)": p.k_async(some),
        "k_batch_async(P/2)": p.k_batch_async(some),
        "ssp(4)": p.ssp(4),
        "psp(4, 4)": p.psp(4, 4),
        "round_robin": p.round_robin(),
        "groups(P/10)": p.groups(few),
        "bounded_staleness(P)": p.bounded_staleness(workers),
        "  restart": p.bounded_staleness(workers, late="restart"),
        "  wait": p.bounded_staleness(workers, late="wait"),
        "rennala(P/2)": p.rennala(some),
        "ringleader": p.ringleader(),
        "mindflayer(2, 2 s)": p.mindflayer(2, 2.0),
        "gradient_coding(P/10, 2)": p.gradient_coding(few if workers > 20 else 2, 2),
        "event_triggered(0.5)": p.event_triggered(0.5),
    }


def gradients_in(protocol: Any, workers: int, gradients: int) -> tuple[int, float]:
    """The number of gradients of a simulation, about `gradients`, and its seconds."""
    cluster = dj.cluster.Cluster(workers, dj.cluster.exponential(1.0))
    started = time.perf_counter()
    # tasks take 1 s on average, and the last of 100,000 ends after about 12 s
    simulated = max(gradients / workers, 15.0)
    trace = dj.cluster.simulate(cluster, protocol, None, seed=0, seconds=simulated)
    seconds = time.perf_counter() - started
    return trace.summary().gradients.sum() + len(trace.dropped.worker), seconds


def event_loop(gradients: int) -> None:
    """Prints microseconds per gradient, and seconds per million of 1,000 workers."""
    sizes = (8, 1_000, 100_000)
    columns = " | ".join(f"P = {size:,}: us" for size in sizes)
    print(f"| protocol | {columns} | P = 1,000: s a million |")
    print("|---" * (len(sizes) + 2) + "|")
    rules = {size: protocols(size) for size in sizes}
    for name in rules[8]:
        costs = {}
        for size in sizes:
            arrived, seconds = gradients_in(rules[size][name], size, gradients)
            costs[size] = seconds / arrived
        cells = " | ".join(f"{1e6 * cost:.1f}" for cost in costs.values())
        print(f"| {name} | {cells} | {1e6 * costs[1_000]:.1f} |", flush=True)


class Problem(NamedTuple):
    """Something to train, small enough that overhead shows."""

    params: Any
    loss: Callable[[Any, Any], jax.Array]
    batches: Callable[[int], Any]  # n -> leaves [n, ...]


def digits(batch_size: int) -> Problem:
    """The problem of the runner's default network on scikit-learn's digits."""
    task = tasks.digits_mlp(batch_size=batch_size)
    params = task.init(jax.random.key(0))
    return Problem(params, task.loss, lambda n: task.batches(0, 0, n))


def quadratic(dimension: int) -> Problem:
    """The problem 1/2 sum_i lambda_i x_i^2 with tabulated gradient noise."""
    curvatures = jnp.linspace(0.01, 1.0, dimension)

    def loss(x, noise):
        return 0.5 * jnp.sum(curvatures * x**2) + x @ noise.mean(0)

    def batches(n):
        shape = n, 1, dimension
        return np.random.default_rng(0).standard_normal(shape, np.float32)

    return Problem(jnp.ones(dimension), loss, batches)


def replay_of(problem: Problem, trace: dj.cluster.Trace) -> dj.Replay:
    """The training by SGD along a trace."""
    gradient = jax.grad(problem.loss)

    def grad_fn(params, batch, key):
        return {}, gradient(params, batch)

    return dj.replay(trace, grad_fn, optax.sgd(RATE))


def compiled_scans(
    problem: Problem, trace: dj.cluster.Trace, batches: Any
) -> dict[str, Callable[[Any], Any]]:
    """{name: compiled scan}, each from parameters to parameters after all updates."""
    gradient, replay = jax.grad(problem.loss), replay_of(problem, trace)
    arrivals = jax.tree.map(jnp.asarray, trace.arrivals(0, trace.num_updates))

    def along(params):
        state = replay.init(params, jax.random.key(0))
        return jax.lax.scan(replay.step, state, (arrivals, batches))[0].params

    def fresh(params, batch):
        every = jax.vmap(gradient, (None, 0))(params, batch)
        return jax.tree.map(lambda leaf: leaf.mean(0), every)

    def union(params, batch):
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
        return gradient(params, flat)

    def scan_of(direction):
        def step(params, batch):
            return optax.tree.add_scale(params, -RATE, direction(params, batch)), None

        return lambda params: jax.lax.scan(step, params, batches)[0]

    scans = {
        "replay": along,
        "fresh scan": scan_of(fresh),
        "union scan": scan_of(union),
    }
    return {name: jax.jit(scan) for name, scan in scans.items()}


def python_loops(
    problem: Problem, trace: dj.cluster.Trace, batches: Any, updates: int
) -> dict[str, Callable[[Any], Any]]:
    """{name: Python loop over gradients}, each trains for the first updates."""
    gradient = jax.jit(jax.grad(problem.loss))
    tx = optax.sgd(RATE)
    rows = [
        [jax.tree.map(lambda leaf, t=t, k=k: leaf[t, k], batches) for k in range(count)]
        for t, count in enumerate(trace.counts[:updates])
    ]
    ages = trace.staleness.tolist()

    @jax.jit
    def fused(params, total, stale, batch, weight):
        total = jax.tree.map(jnp.add, total, gradient(stale, batch))
        return optax.tree.add_scale(params, -RATE * weight, total), total

    def step_loop(params):
        versions, zeros = [params], optax.tree.zeros_like(params)
        for t, row in enumerate(rows):
            total = zeros
            for k, batch in enumerate(row):
                stale = versions[t - ages[t][k]]
                moved, total = fused(versions[t], total, stale, batch, 1 / len(row))
            versions.append(moved)
        return versions[-1]

    def eager_loop(params):
        versions, opt_state = [params], tx.init(params)
        for t, row in enumerate(rows):
            every = [
                gradient(versions[t - ages[t][k]], batch) for k, batch in enumerate(row)
            ]
            mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *every)
            moves, opt_state = tx.update(mean, opt_state, versions[t])
            versions.append(optax.apply_updates(versions[t], moves))
        return versions[-1]

    return {"fused step": step_loop, "eager loop": eager_loop}


def training(rounds: int, clusters: Sequence[int]) -> None:
    """Prints microseconds per update along traces, beside the four other ways."""
    problems = {
        "digits MLP, m = 4": digits(4),
        "digits MLP, m = 16": digits(16),
        "quadratic, d = 1,000": quadratic(1_000),
    }
    names = "replay", "fresh scan", "union scan", "fused step", "eager loop"
    print(
        "| problem | K | P | largest staleness | versions |"
        f" {' us | '.join(names)} us | MiB of versions | MiB besides |"
    )
    print("|---" * (len(names) + 7) + "|")
    for title, problem in problems.items():
        for k in (1, 15):
            for workers in clusters:
                updates, looped = 6_000 // k, 300 // k
                if workers != HEAVY:
                    trace = cut_trace(workers, k, updates)
                elif k == 1:
                    trace = heavy_trace(updates)
                else:  # 15 of 17 workers are seldom late
                    continue
                batches = jax.tree.map(
                    lambda leaf, k=k: jnp.asarray(leaf).reshape(-1, k, *leaf.shape[1:]),
                    problem.batches(updates * k),
                )
                scans = compiled_scans(problem, trace, batches)
                loops = python_loops(problem, trace, batches, looped)
                seconds = medians(
                    {
                        name: Run(functools.partial(way, problem.params))
                        for name, way in (scans | loops).items()
                    },
                    rounds=rounds,
                    warmup=1,
                )
                base = seconds["replay"] / updates
                cells = [
                    f"{1e6 * seconds[name] / n:.1f} ({seconds[name] / n / base:.2f} x)"
                    for name, n in zip(
                        names, (updates,) * 3 + (looped,) * 2, strict=True
                    )
                ]
                analysis = scans["replay"].lower(problem.params).compile()
                start = replay_of(problem, trace).init, problem.params
                kept = jax.eval_shape(*start, jax.random.key(0)).versions.slots
                leaves = jax.tree.leaves(kept)
                held = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
                # the program makes its state itself, so that it counts as temporary
                besides = max(analysis.memory_analysis().temp_size_in_bytes - held, 0)
                print(
                    f"| {title} | {k} | {workers:,} | {trace.max_staleness} |"
                    f" {trace.max_versions} | {' | '.join(cells)} |"
                    f" {held / 2**20:.2f} | {besides / 2**20:.2f} |",
                    flush=True,
                )


def cut_trace(workers: int, k: int, updates: int) -> dj.cluster.Trace:
    """The trace of asynchronous workers, k gradients an update, stale up to `BOUND`."""
    return dj.cluster.simulate(
        dj.cluster.Cluster(workers, dj.cluster.exponential(1.0)),
        dj.cluster.protocols.bounded_staleness(BOUND, batch=k),
        updates,
        seed=0,
    )


def heavy_trace(updates: int) -> dj.cluster.Trace:
    """The trace of workers with Pareto times, one gradient an update, stale by 10 P."""
    trace = dj.cluster.simulate(
        dj.cluster.Cluster(HEAVY, dj.cluster.pareto(1.0, 1.5)),
        dj.cluster.protocols.k_async(1),
        updates,
        seed=0,
    )
    assert trace.max_staleness >= 10 * HEAVY
    return trace


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gradients", type=int, default=200_000, help="simulated")
    parser.add_argument("--rounds", type=int, default=5, help="trainings of each kind")
    of_traces = 8, HEAVY, 1_000, 100_000
    parser.add_argument("--workers", type=int, nargs="*", default=of_traces)
    args = parser.parse_args()
    print(f"{heading()}\n")
    if args.gradients:
        event_loop(args.gradients)
        print()
    training(args.rounds, args.workers)


if __name__ == "__main__":
    main()
