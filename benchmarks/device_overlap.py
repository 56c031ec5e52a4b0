"""How much of an all-reduce hides behind computation on the devices of one host.

    python -m benchmarks.device_overlap

First the bandwidth of an all-reduce among all n devices. In a ring each device sends

    2 (n - 1) / n x bytes

Then the steps of `benchmarks.overlap`, which take turns: compute, communication,
synchronous and overlapped, compiled with the options of
`dj.exchange.overlap_options`. The batch is chosen so that computing takes about as long
as communicating. The part

    hidden = (compute + communication - overlapped) / min(compute, communication)

of the shorter one of the two adds no time; it is cut to 0 .. 1. On an accelerator a
program is a loop of 50 steps.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from benchmarks import overlap
from benchmarks.overlap import RATE, STEPS
from benchmarks.side_by_side import Contender, heading, medians, steps_a_program
from benchmarks.tables import NotMeasuredError, Row, Table

SUMMED = 2**20, 2**24, 2**28  # bytes
PARAMETERS = 10**6, 10**7, 10**8
SECONDS = 30.0  # about as long as the rounds of a model may take
ROUNDS = 3, 20  # the least and the most rounds
EXAMPLES = 8, 2**16  # the least and the most per device, in a step

BANDWIDTH = {"MiB": "{:g}", "ms": "{:.3f}", "GB/s a device": "{:.2f}"}
HIDDEN = {
    "parameters": "{:,}",
    "examples a device": "{}",
    **{f"{step} ms": "{:.3f}" for step in STEPS},
    "synchronous / max": "{:.2f}",
    "overlapped / max": "{:.2f}",
    "hidden": "{:.2f}",
}


def sent_bytes(size: int, devices: int) -> float:
    """The bytes that each device sends in an all-reduce of `size` bytes, in a ring."""
    return 2 * (devices - 1) / devices * size


def hidden(compute: float, communication: float, overlapped: float) -> float:
    """The hidden part of the shorter one of compute and communication, 0 to 1."""
    saved = compute + communication - overlapped
    return min(1.0, max(0.0, saved / min(compute, communication)))


def all_devices() -> Mesh:
    """A mesh with a worker on each device."""
    count = len(jax.devices())
    if count < 2:
        raise NotMeasuredError("one device")
    return jax.make_mesh((count,), ("workers",), axis_types=(AxisType.Auto,))


def placed(mesh: Mesh, values: np.ndarray) -> jax.Array:
    """The values [workers, *shape], with each worker's values on its device."""
    return jax.device_put(values, NamedSharding(mesh, P("workers")))


def all_reduce(mesh: Mesh, size: int, steps: int) -> Contender:
    """A step that sums `size` bytes of each device over all devices."""
    # the compiler does not know that the rows are equal, so it leaves out no sum
    rows = placed(mesh, np.ones((mesh.size, size // 4), np.float32))
    shares = placed(mesh, np.full((mesh.size, 1), 1 / mesh.size, np.float32))

    def step(row, share):
        return jax.lax.psum(row, "workers") * share

    along = P("workers")
    summed = jax.shard_map(step, mesh=mesh, in_specs=(along, along), out_specs=along)
    return Contender(summed, rows, shares, steps=steps)


def bandwidth_rows(mesh: Mesh, sizes: Sequence[int]) -> Iterator[Row]:
    """Rows with the bandwidth of each device, for all-reduces of these sizes."""
    for size in sizes:
        summed = all_reduce(mesh, size, steps_a_program())
        seconds = medians({"sum": summed}, rounds=max(ROUNDS), warmup=1)["sum"]
        yield {
            "MiB": size / 2**20,
            "ms": 1e3 * seconds,
            "GB/s a device": sent_bytes(size, mesh.size) / seconds / 1e9,
        }


def trained_alone(params: Any, batch: jax.Array) -> tuple[Any, Mapping]:
    """A step without communication: each device trains its own model."""
    grads = jax.grad(overlap.loss)(dj.workers.vary(params), batch)
    return optax.tree.add_scale(params, -RATE, grads), {}


def soon(contender: Contender) -> float:
    """The seconds of a step: the least of two rounds, after a round to warm up."""
    return min([contender.seconds() for _ in range(3)][1:])


def hidden_row(mesh: Mesh, parameters: int) -> Row:
    """A row with the times of all steps, for a model of about `parameters`."""
    params = overlap.perceptron(parameters, jax.random.key(0))
    width = params[0][0].shape[0]
    steps = steps_a_program()

    def batch_of(examples):
        shape = mesh.size, examples, width
        return placed(mesh, np.random.default_rng(0).standard_normal(shape, np.float32))

    def contender(step, state, examples, shared=None):
        return overlap.exchanging(
            *(mesh, step, state, batch_of(examples)),
            shared=shared,
            steps=steps,
            options=dj.exchange.overlap_options(jax.devices()[0]),
        )

    exact = dj.exchange.mean(optax.sgd(RATE))
    late = dj.exchange.overlapped_mean(optax.sgd(RATE))
    held = params, exact.init(params), optax.tree.ones_like(params)
    sending = contender(overlap.sent_by(exact), held, 1, (True, False, False))
    to_send, (least, most) = soon(sending), EXAMPLES
    examples = 64
    for _ in range(3):
        took = soon(contender(trained_alone, params, examples, False))
        examples = round(examples * to_send / took / least) * least
        examples = min(max(least, examples), most)

    rounds = int(SECONDS / (len(STEPS) * 1.25 * steps * to_send))
    t = medians(
        {
            "compute": contender(trained_alone, params, examples, False),
            "communication": sending,
            "synchronous": contender(
                overlap.trained_by(exact), (params, exact.init(params)), examples
            ),
            "overlapped": contender(
                overlap.trained_by(late), (params, late.init(params)), examples
            ),
        },
        rounds=min(max(ROUNDS[0], rounds), ROUNDS[1]),
        warmup=1,
    )
    longer = max(t["compute"], t["communication"])
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "examples a device": examples,
        **{f"{step} ms": 1e3 * t[step] for step in STEPS},
        "synchronous / max": t["synchronous"] / longer,
        "overlapped / max": t["overlapped"] / longer,
        "hidden": hidden(t["compute"], t["communication"], t["overlapped"]),
    }


def tables(sizes: Sequence[int], parameters: Sequence[int]) -> Iterator[Table]:
    """Both tables; each is measured when it is read."""
    mesh = all_devices()
    caption = f"An all-reduce among {mesh.size} devices, of float32 numbers."
    yield Table(caption, BANDWIDTH, bandwidth_rows(mesh, sizes))
    caption = f"Perceptrons on {mesh.size} devices, a worker each, SGD."
    yield Table(caption, HIDDEN, (hidden_row(mesh, count) for count in parameters))


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=SUMMED)
    parser.add_argument("--parameters", type=int, nargs="+", default=PARAMETERS)
    args = parser.parse_args()
    print(f"{heading()}; medians\n")
    try:
        for table in tables(args.bytes, args.parameters):
            table.show()
    except NotMeasuredError as error:
        parser.exit(1, f"not measured: {error}\n")


if __name__ == "__main__":
    main()
