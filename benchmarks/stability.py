"""The time and the error of stability limits, compared with the companion matrix.

    python -m benchmarks.stability

First a map of limits for delays 0 to 64 and momenta 0 to 0.99, from `step_limit`. For
some of its cells the limit is also found in the usual way, by bisection on the
eigenvalues of the companion matrix; both take turns. Then the time of one limit at a
long delay, in mean square and along a trace, and of a sharpness beside its gradient.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import delayjax as dj
from benchmarks.side_by_side import Run, heading, medians
from experiments import tasks

DELAYS, MOMENTA = range(65), np.linspace(0, 0.99, 154)


def companion_limit(delay: int, momentum: float) -> float:
    """The limit by bisection on the largest root of the recursion, to twelve digits."""

    def radius(step):
        # z^{tau+2} - (1 + beta) z^{tau+1} + beta z^tau + a z, without factors of z
        coefficients = np.zeros(delay + 3)
        coefficients[:3] = 1, -1 - momentum, momentum
        coefficients[delay + 1] += step
        return np.abs(np.roots(coefficients)).max()

    low, high = 0.0, 4.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle) <= 1 else (low, middle)
    return high


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(heading())
    started = time.perf_counter()
    limits = np.array(
        [
            [dj.stability.Dynamics(tau, momentum=beta).step_limit() for beta in MOMENTA]
            for tau in DELAYS
        ]
    )
    seconds = time.perf_counter() - started
    print(
        f"\n{limits.size:,} limits, delays 0 to 64, momenta 0 to 0.99: {seconds:.1f} s"
    )
    rng = np.random.default_rng(0)
    cells = list(
        zip(rng.integers(65, size=100), rng.integers(154, size=100), strict=True)
    )

    def by_crossings():
        return [
            dj.stability.Dynamics(int(i), momentum=MOMENTA[j]).step_limit()
            for i, j in cells
        ]

    def by_eigenvalues():
        return [companion_limit(int(i), MOMENTA[j]) for i, j in cells]

    error = np.abs(np.divide(by_crossings(), by_eigenvalues()) - 1).max()
    taken = medians(
        {"crossings": Run(by_crossings), "companion": Run(by_eigenvalues)},
        rounds=rounds,
        warmup=1,
    )
    ratio = taken["companion"] / taken["crossings"]
    print(
        f"100 random cells of it: the companion matrix takes {ratio:.0f} x as long, and"
        f" agrees to {error:.1e}"
    )
    cluster = dj.cluster.Cluster(16, dj.cluster.gamma(1.0, 4.0))
    protocol = dj.cluster.protocols.k_async(1)
    trace = dj.cluster.simulate(cluster, protocol, 100_000, seed=0)
    law = trace.staleness_law().pmf
    task = tasks.digits_mlp(batch_size=0)
    params = task.init(jax.random.key(0))
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), task.batches(0, 0, 1))
    gradient = jax.jit(jax.grad(task.loss))
    singles = {
        "step_limit(1000)": Run(lambda: dj.stability.Dynamics(1000).step_limit()),
        f"step_limit(law of {len(law)})": Run(
            lambda: dj.stability.Dynamics(law).step_limit()
        ),
        "  of the mean over runs": Run(
            lambda: dj.stability.Dynamics(law).step_limit("mean")
        ),
        "TraceDynamics(100,000)": Run(
            lambda: dj.stability.TraceDynamics(trace.staleness).step_limit()
        ),
        "sharpness, digits MLP": Run(
            lambda: dj.stability.sharpness(task.loss, params, batch)
        ),
        "  its gradient": Run(lambda: gradient(params, batch)),
    }
    print("\n| | ms |\n|---|---|")
    for name, value in medians(singles, rounds=rounds, warmup=1).items():
        print(f"| {name} | {1000 * value:.3g} |")


if __name__ == "__main__":
    main()
