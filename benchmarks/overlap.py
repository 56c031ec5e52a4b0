"""Measures how much of a slow all-reduce hides behind computation, one step late.

    python -m benchmarks.overlap --figure=overlap.png

Two processes train a multilayer perceptron with SGD, over a simulated link
(`benchmarks.slow_link`, which needs root), by gloo and always on the CPU: two processes
cannot share a GPU or TPU. These steps take turns:

    compute         no communication: each process trains alone
    communication   `exchange.mean` of a gradient that is already computed
    synchronous     `exchange.mean`: takes at best the sum of the two times
    overlapped      `exchange.overlapped_mean`: takes at best the longer of the two

The batch is chosen so that computing takes about as long as communicating. The time of
a step is its time on the slower process; both begin at the same moment.

With `--islands` the processes are islands, which exchange models every five steps, four
steps late. Times are means over five steps. A slice is a quarter of the model:

    communication   `exchange.mean` of a slice, at each step
    synchronous     `averaging.outer` without delay: one exchange of the model a round
    overlapped      `averaging.outer` with the delay: a slice at each step

Sending also takes time on the cores: gloo copies, the kernel copies, and the link is a
process. "cores" is the busy time of all cores in a step of computing and a step of
communicating, over the number of cores: about the least time that an overlap can take.
"MB" is the amount that a process sends in a step, with headers, by its network device.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure

import delayjax as dj
from benchmarks.side_by_side import Contender, heading
from benchmarks.slow_link import slow_link
from experiments.figures import palette, sheets

RATE = 0.01
LAYERS = 4
PORT = 1234  # each link has its own network namespace
TARGET = 1.15  # of overlapped / max(compute, communication)
PERIOD, DELAY = 5, 4  # of the islands
COMPARABLE = 2.0  # the target holds up to this ratio of compute and communication
STEPS = "compute", "communication", "synchronous", "overlapped"
CORES = len(os.sched_getaffinity(0))


class Cell(NamedTuple):
    """The measurements of a model on a link."""

    latency_seconds: float
    parameters: int
    examples: int  # of each process, in a step
    seconds: Mapping[str, Sequence[float]]  # {kind of step: its time in each round}
    busy: Mapping[str, float]  # {kind of step: busy seconds of all cores, the mean}
    sent: Mapping[str, float]  # {kind of step: bytes that a process sends, the mean}

    @property
    def cores(self) -> float:
        """The seconds that the cores need to compute and to send, if all are busy."""
        return (self.busy["compute"] + self.busy["communication"]) / CORES

    def median(self, step: str) -> float:
        """The median seconds of a step of this kind."""
        return statistics.median(self.seconds[step])

    def ratio(self, step: str) -> float:
        """The step's time over max(compute, communication): the median of rounds."""
        pairs = zip(
            *(self.seconds[name] for name in (step, "compute", "communication")),
            strict=True,
        )
        return statistics.median(took / max(least) for took, *least in pairs)

    @property
    def least_ratio(self) -> float:
        """The smallest ratio of the overlapped step that the cores allow."""
        longer = max(self.median("compute"), self.median("communication"))
        return max(1.0, self.cores / longer)

    @property
    def comparable(self) -> bool:
        """Whether computing takes about as long as communicating."""
        quotient = self.median("compute") / self.median("communication")
        return 1 / COMPARABLE <= quotient <= COMPARABLE


# Each of the two processes.


def perceptron(parameters: int, key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """The weights and biases of square layers, about `parameters` numbers in all."""
    width = round(math.sqrt(parameters / LAYERS))
    keys = jax.random.split(key, LAYERS)
    return [
        (jax.random.normal(k, (width, width)) / math.sqrt(width), jnp.zeros(width))
        for k in keys
    ]


def loss(params: Any, batch: jax.Array) -> jax.Array:
    """The loss of an autoencoder."""
    x = batch
    for weights, biases in params:
        x = jax.nn.relu(x @ weights + biases[None])
    return jnp.mean((x - batch) ** 2)


def trained_by(tx: optax.GradientTransformation) -> Callable:
    """The training step of one worker."""

    def step(state, batch):
        params, opt_state = state
        grads = jax.grad(loss)(dj.workers.vary(params), batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    return step


def sent_by(tx: optax.GradientTransformation) -> Callable:
    """The step of one worker that only exchanges a gradient, which the state has."""

    def step(state, batch):
        params, opt_state, grads = state
        varied = dj.workers.vary(grads)
        updates, opt_state = tx.update(varied, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, varied), {}

    return step


class Round:
    """A round of several steps of a contender, one after the other."""

    def __init__(self, contender: Contender, steps: int):
        """Takes `steps` steps of `contender` in a round."""
        self._contender, self._steps = contender, steps

    def seconds(self) -> float:
        """The mean time of a step of this round."""
        started = time.perf_counter()
        for _ in range(self._steps):
            self._contender.start()
        jax.block_until_ready(self._contender.state)
        return (time.perf_counter() - started) / self._steps


class Pair:
    """The pair of this process and the other process."""

    def __init__(self, latency_seconds: float, epoch: float):
        """`epoch`: a moment of the monotonic clock, which both processes read."""
        self.mesh = jax.make_mesh((2,), ("workers",), axis_types=(AxisType.Auto,))
        self._latency, self._epoch = latency_seconds, epoch
        self._largest = jax.jit(
            jax.shard_map(
                lambda x: jax.lax.pmax(x[0], "workers"),
                mesh=self.mesh,
                in_specs=P("workers"),
                out_specs=P(),
            )
        )

    def on_this_process(self, values: np.ndarray) -> jax.Array:
        """A global array [2, *shape], from the values [*shape] of each process."""
        sharding = NamedSharding(self.mesh, P("workers"))
        return jax.make_array_from_process_local_data(sharding, values[None])

    def larger(self, value: int) -> int:
        """The larger of the two processes' values."""
        return int(self._largest(self.on_this_process(np.int32(value))))

    def seconds(self, contender: Contender | Round) -> float:
        """The seconds of a step that both processes begin at the same moment."""
        soon = time.monotonic() - self._epoch + 4 * self._latency + 0.01
        begin = self._epoch + self.larger(math.ceil(1e3 * soon)) / 1e3
        time.sleep(max(0.0, begin - time.monotonic()))
        return contender.seconds()

    def agreed(self, contender: Contender | Round) -> float:
        """The seconds on the slower process: the least of two rounds after a first."""
        times = [self.seconds(contender) for _ in range(3)][1:]
        return self.larger(round(1e6 * min(times))) / 1e6


def computing(params: Any, batch: np.ndarray) -> Contender:
    """The step without communication, on this process alone."""

    def step(params, batch):
        grads = jax.grad(loss)(params, batch)
        return optax.tree.add_scale(params, -RATE, grads)

    return Contender(step, jax.tree.map(jnp.copy, params), jnp.asarray(batch))


def exchanging(
    mesh: jax.sharding.Mesh,
    step: Callable,
    state: Any,
    batch: jax.Array,
    *,
    shared: Any = None,
    **options: Any,
) -> Contender:
    """A contender with a step of all workers; `options` are options of `Contender`."""
    workers = dj.workers.run(step, mesh)
    held = workers.init(state, batch, shared)
    return Contender(
        lambda held, batch: workers.step(held, batch)[0], held, batch, **options
    )


def measured(
    pair: Pair, parameters: int, seconds: float, bucket_bytes: int, islands: bool
) -> dict[str, Any]:
    """The times of all steps of a model, by round.

    Args:
        pair: the two processes.
        parameters: the approximate number of parameters of the model.
        seconds: the time that all rounds together may take.
        bucket_bytes: the size of a bucket in the exchange of gradients.
        islands: whether models are exchanged, and not gradients.
    """
    params = perceptron(parameters, jax.random.key(0))
    size = optax.tree.size(params)
    width = params[0][0].shape[0]
    rng = np.random.default_rng(jax.process_index())

    def batch_of(examples):
        return rng.standard_normal((examples, width), np.float32)

    mean = dj.exchange.mean(optax.sgd(RATE), bucket_bytes=bucket_bytes)
    if islands:
        steps, shared, message = PERIOD, False, jnp.zeros(size // DELAY)
        exact, late = (diloco(delay) for delay in (0, DELAY))
    else:
        steps, shared, message, exact = 1, None, params, mean
        late = dj.exchange.overlapped_mean(optax.sgd(RATE), bucket_bytes=bucket_bytes)
    communication = exchanging(
        pair.mesh,
        sent_by(mean),
        (message, mean.init(message), optax.tree.ones_like(message)),
        pair.on_this_process(batch_of(1)),
        shared=(True, False, False),
    )
    contenders = {"communication": Round(communication, steps)}
    to_send = pair.agreed(contenders["communication"])
    examples = 64
    for _ in range(2):
        took = pair.agreed(computing(params, batch_of(examples)))
        examples = 8 * max(1, min(round(examples * to_send / took / 8), 2**12))

    batch = batch_of(examples)
    contenders["compute"] = Round(computing(params, batch), steps)
    for name, tx in (("synchronous", exact), ("overlapped", late)):
        state, given = (params, tx.init(params)), pair.on_this_process(batch)
        one = exchanging(pair.mesh, trained_by(tx), state, given, shared=shared)
        contenders[name] = Round(one, steps)
    rounds = pair.larger(max(5, min(40, int(seconds / (5 * steps * to_send)))))
    times: dict[str, list[float]] = {name: [] for name in STEPS}
    busy, sent = dict.fromkeys(STEPS, 0.0), dict.fromkeys(STEPS, 0.0)
    for turn in range(1 + rounds):
        for name in STEPS:
            before = busy_seconds(), sent_bytes()
            took = pair.seconds(contenders[name])
            if turn:  # the first round is for warming up
                times[name].append(took)
                busy[name] += (busy_seconds() - before[0]) / rounds / steps
                sent[name] += (sent_bytes() - before[1]) / rounds / steps
    facts = {"parameters": size, "examples": examples, "seconds": times}
    return facts | {"busy": busy, "sent": sent}


def diloco(delay: int) -> optax.GradientTransformation:
    """The optimizer of the two processes as islands."""
    nesterov = optax.sgd(0.7, momentum=0.9, nesterov=True)
    return dj.averaging.outer(optax.sgd(RATE), nesterov, period=PERIOD, delay=delay)


def sent_bytes() -> int:
    """The bytes that the network device of this process's namespace has sent."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    (device,) = [line for line in lines if line.strip().startswith("tun:")]
    return int(device.split(":")[1].split()[8])


def busy_seconds() -> float:
    """The seconds that the cores of this machine were busy since it started."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def work(args: argparse.Namespace) -> None:
    """Runs one of the two processes, which prints a line of JSON for each model."""
    jax.distributed.initialize(args.coordinator, 2, args.rank)
    pair = Pair(args.latency, args.epoch)
    for parameters in args.parameters:
        result = measured(
            pair, parameters, args.seconds, args.bucket_bytes, args.islands
        )
        print(json.dumps(result), flush=True)


# The program that starts the processes.


def run_pair(args: argparse.Namespace, latency: float) -> list[Cell]:
    """The measurements of all models over a link of this latency, in seconds."""
    with slow_link(latency_seconds=latency, bytes_per_second=args.bandwidth) as link:
        processes = [
            link.popen(
                rank,
                [
                    *(sys.executable, "-m", "benchmarks.overlap", f"--rank={rank}"),
                    f"--coordinator={link.addresses[0]}:{PORT}",
                    f"--latency={latency}",
                    f"--epoch={time.monotonic()}",
                    f"--seconds={args.seconds}",
                    f"--bucket_bytes={args.bucket_bytes}",
                    *["--islands"] * args.islands,
                    *("--parameters", *map(str, args.parameters)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        both = [
            [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            for text in outputs(processes)
        ]
    return [merged(latency, *results) for results in zip(*both, strict=True)]


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """The outputs of processes; if one fails, the others are killed."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        running = {pool.submit(process.communicate): process for process in processes}
        for done in concurrent.futures.as_completed(running):
            if running[done].returncode:
                for process in processes:
                    process.kill()
                raise RuntimeError(f"A process failed:\n{done.result()[1][-4000:]}")
        return [done.result()[0] for done in running]


def merged(latency: float, one: dict[str, Any], other: dict[str, Any]) -> Cell:
    """The measurements of both processes as one: a step has the slower one's time."""
    seconds = {
        name: [max(pair) for pair in zip(times, other["seconds"][name], strict=True)]
        for name, times in one["seconds"].items()
    }
    facts = (one[name] for name in ("busy", "sent"))
    return Cell(latency, one["parameters"], one["examples"], seconds, *facts)


def row(cell: Cell) -> str:
    """The line of a cell in the table."""
    columns = (
        f"{1e3 * cell.latency_seconds:g}",
        f"{cell.parameters / 1e6:.2g}M",
        f"{cell.examples}",
        *(f"{1e3 * cell.median(step):.1f}" for step in STEPS),
        f"{1e3 * cell.cores:.1f}",
        f"{cell.ratio('synchronous'):.2f}",
        f"{cell.ratio('overlapped'):.2f}",
        f"{cell.least_ratio:.2f}",
        *(f"{1e-6 * cell.sent[step]:.3g}" for step in ("synchronous", "overlapped")),
    )
    return f"| {' | '.join(columns)} |"


def verdict(cells: Sequence[Cell]) -> str:
    """A sentence that says in how many rows the target is met."""
    asked = [cell for cell in cells if cell.comparable]
    met = [cell for cell in asked if cell.ratio("overlapped") <= TARGET]
    possible = [
        cell for cell in asked if cell.ratio("overlapped") <= TARGET * cell.least_ratio
    ]
    return (
        f"overlapped <= {TARGET} x max(compute, communication) in {len(met)} of the"
        f" {len(asked)} rows where the two are within {COMPARABLE:g} x of each other,"
        f" and <= {TARGET} x the least by the cores in {len(possible)}"
    )


@sheets.STYLED
def draw(cells: Sequence[Cell], bytes_per_second: float) -> Figure:
    """A figure of both steps' times over max(compute, communication), by latency."""
    sizes = list(dict.fromkeys(cell.parameters for cell in cells))
    names = palette.styles(["overlapped", "synchronous"])
    handles = palette.handles(names)
    bits = 8e-6 * bytes_per_second
    figure, axes = sheets.sheet(
        f"Late by one step, an all-reduce hides\n(two processes, {bits:g} Mbit/s)",
        [f"{size / 1e6:.2g}M parameters" for size in sizes],
        handles,
        columns=len(sizes),
    )
    for axis, size in zip(axes, sizes, strict=True):
        shown = [cell for cell in cells if cell.parameters == size]
        for name, style in names.items():
            axis.plot(
                [1e3 * cell.latency_seconds for cell in shown],
                [cell.ratio(name) for cell in shown],
                color=style.color,
                marker=style.marker,
                linestyle=style.dashes,
            )
        axis.axhline(1.0, color="0.3", lw=0.8, zorder=0)
        axis.set_xlabel("latency (ms)")
    largest = max(cell.ratio(name) for cell in cells for name in names)
    axes[0].set_ylim(0.0, 1.08 * largest)  # all axes share the limits
    axes[0].set_ylabel("step time /\nmax(compute, communication)")
    return figure


def main() -> None:
    """Prints the table, and draws it if `--figure` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--parameters", type=int, nargs="+", default=[10**5, 10**6, 10**7]
    )
    parser.add_argument(
        *("--latencies", "--ms"),
        type=float,
        nargs="+",
        default=[0.0, 10.0, 40.0],
        help="ms, one way",
    )
    parser.add_argument("--bandwidth", type=float, default=12.5e6, help="bytes/s")
    parser.add_argument("--seconds", type=float, default=30.0, help="a row, about")
    parser.add_argument("--bucket_bytes", type=int, default=4 * 2**20)
    parser.add_argument("--islands", action="store_true", help="exchange models")
    parser.add_argument("--figure", help="a picture to write (PNG)")
    for name, kind in (("rank", int), ("coordinator", str), ("latency", float)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--epoch", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # before any device is looked for
    if args.rank is not None:
        work(args)
        return
    print(f"{heading()}; two processes, {args.bandwidth / 1e6:g} MB/s, SGD, medians\n")
    columns: list[str] = ["latency ms", "parameters", "examples"]
    columns += [f"{step} ms" for step in STEPS]
    columns += ["cores ms"]
    columns += ["synchronous / max", "overlapped / max", "least by the cores"]
    columns += ["synchronous MB", "overlapped MB"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)
    cells = []
    for latency in args.latencies:
        for cell in run_pair(args, latency / 1e3):
            cells.append(cell)
            print(row(cell), flush=True)
    print(f"\n{verdict(cells)}")
    if args.figure:
        print(sheets.save(draw(cells, args.bandwidth), args.figure))


if __name__ == "__main__":
    main()
