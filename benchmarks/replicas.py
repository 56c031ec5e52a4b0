"""The cost of averaging replicas per step, beside its limit and what users write.

    python -m benchmarks.replicas

64 replicas of the runner's digits MLP are simulated on one device; SGD, medians of
steps that take turns. PERIOD steps are one compiled, donated loop, so that the cost of
a call is divided among them, and a method that averages once a period does so once in
the loop. "limit" is the time of the same loop without averages, a gradient of all
examples at the parameters of their replicas, plus the time to move the bytes of the
averages at the bandwidth of a copy of the replicas. The goal is at most 1.2 x the
limit; an average that the compiler joins with the local step takes less than the limit.

NumPy runs the same method on arrays of all replicas, with a gradient written by hand;
PyTorch, if it is installed, has a module for each replica and autograd. Both run on the
CPU, PyTorch on one thread. Memory is the memory of one compiled step, in models per
replica; the memory of "none" is needed without any average.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from benchmarks.side_by_side import Contender, Run, copy, heading, medians
from benchmarks.tables import Row, Table
from experiments import tasks

WORKERS = 64
PERIOD = 8  # local steps from one average of all to the next
GROUP = 8  # sqrt(WORKERS): two patterns, neighbors and replicas that are GROUP apart
DELAY = 4  # of averages that arrive later, in steps
RATE = 0.1
PULL = 0.9 / WORKERS  # of the springs: the library's default
COPIES = 64  # in one call, as a call costs as much as several copies
PEERS = "local_sgd", "easgd", "wagma"
ROUNDS = 30
BATCHES = 32, 4  # examples a replica

REPLICAS = {
    "method": "{}",
    "step ms": "{:.3f}",
    "limit ms": "{:.3f}",
    "step / limit": "{:.2f}",
    "step / NumPy (CPU)": "{:.3f}",
    "step / eager PyTorch (CPU)": "{:.3f}",
    "state / PN": "{:.3f}",
    "temporaries / PN": "{:.3f}",
}


class Method(NamedTuple):
    """A method, and the least amount that its averages move in a step."""

    tx: optax.GradientTransformation
    # the amount read and written, in models per replica, in a separate pass: a mean
    # needs the finished steps of all its replicas
    models: float


def methods() -> dict[str, Method]:
    """{name: method} of the library's methods, with the amounts that they move."""
    averaging, inner, key = dj.averaging, optax.sgd(RATE), jax.random.key(0)
    seconds = np.random.default_rng(0).exponential(size=(1000, WORKERS))
    in_turn = averaging.first_come(seconds)
    center = 2 / WORKERS  # read and written
    return {
        # in one step of the period all models are read and overwritten
        "local_sgd": Method(averaging.local_sgd(inner, period=PERIOD), 2 / PERIOD),
        # each model and the center are read and written
        "easgd": Method(averaging.easgd(inner), 2 + center),
        # the same amount, one replica after the other
        "easgd, in turn": Method(averaging.easgd(inner, order=in_turn), 2 + center),
        # updates are read and set to zero, models overwritten; and the center
        "downpour": Method(averaging.downpour(inner), 2 + 1 + center),
        # each model is read, and overwritten by the mean of its group or of all
        "wagma": Method(averaging.wagma(inner, group_size=GROUP, period=PERIOD), 2),
        # a replica's model and a drawn model are read, their mean is written
        "gossip": Method(averaging.gossip(inner, key=key), 3),
        # along the ring each model is read once, and written
        "d_psgd": Method(averaging.d_psgd(inner), 2),
        # the models of a pair are read, and their mean is written twice
        "ad_psgd": Method(averaging.ad_psgd(inner, key=key), 2),
        # along the hops each model is read once, and written
        "sgp": Method(averaging.sgp(inner), 2),
        # in one step of the period the models are copied; in another the copies are
        # read for their mean, and again with the models, which are written
        "delayed_average": Method(
            averaging.delayed_average(inner, DELAY, period=PERIOD), (2 + 4) / PERIOD
        ),
        # the outbox is read for its mean, and again with the models, which are written;
        # a slot of the history is written, another is read into the outbox
        "dga": Method(averaging.dga(inner, DELAY), 4 + 1 + 2),
    }


class Problem(NamedTuple):
    """A model for all replicas, and a batch for each replica."""

    params: Any  # of one replica
    loss: Callable[[Any, Any], jax.Array]
    batch: Any  # leaves [WORKERS, examples, ...]

    @property
    def size(self) -> int:
        """The number of parameters of all replicas."""
        return WORKERS * sum(leaf.size for leaf in jax.tree.leaves(self.params))


def digits(examples: int) -> Problem:
    """The problem of the runner's default network on scikit-learn's digits."""
    task = tasks.digits_mlp(batch_size=examples)
    batch = jax.tree.map(jnp.asarray, task.batches(0, 0, WORKERS))
    return Problem(task.init(jax.random.key(0)), task.loss, batch)


def compiled(step: Callable[[Any, Any], Any], state: Any, batch: Any) -> Contender:
    """A contender of a period of steps `(state, batch) -> state`."""
    return Contender(step, state, batch, steps=PERIOD)


def simulated(problem: Problem, tx: optax.GradientTransformation) -> Contender:
    """A contender of all workers of a method, simulated on one device."""

    def of_one(state, batch):
        params, opt_state = state
        grads = jax.grad(problem.loss)(dj.workers.vary(params), batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {}

    workers = dj.workers.simulate(of_one, WORKERS)
    state = problem.params, tx.init(problem.params)
    held = workers.init(state, problem.batch, shared=False)
    return compiled(lambda *args: workers.step(*args)[0], held, problem.batch)


def gradient(problem: Problem) -> Contender:
    """A contender of local steps without averages, as a user writes them."""

    def step(params, batch):
        grads = jax.vmap(jax.grad(problem.loss))(params, batch)
        return optax.tree.add_scale(params, -RATE, grads)

    def of_all(leaf):
        return jnp.repeat(leaf[None], WORKERS, axis=0)

    return compiled(step, jax.tree.map(of_all, problem.params), problem.batch)


def on_host(problem: Problem) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The images [WORKERS, examples, 64], labels, and the leaves of one model."""
    images, labels = map(np.array, (problem.batch["image"], problem.batch["label"]))
    leaves = [np.array(leaf) for leaf in jax.tree.leaves(problem.params)]
    return images.reshape(*labels.shape, -1), labels, leaves


def in_numpy(method: str, problem: Problem) -> Run:
    """A run of a period in NumPy, on arrays of all replicas."""
    images, labels, centers = on_host(problem)
    targets = np.eye(10, dtype=np.float32)[labels]
    leaves = [np.repeat(leaf[None], WORKERS, axis=0) for leaf in centers]

    def gradients():
        b_0, w_0, b_1, w_1 = leaves
        hidden = np.maximum(images @ w_0 + b_0[:, None], 0)
        logits = hidden @ w_1 + b_1[:, None]
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        errors = odds / odds.sum(-1, keepdims=True) - targets
        errors /= images.shape[1]
        back = (errors @ w_1.swapaxes(1, 2)) * (hidden > 0)
        of_w_0, of_w_1 = images.swapaxes(1, 2) @ back, hidden.swapaxes(1, 2) @ errors
        return back.sum(1), of_w_0, errors.sum(1), of_w_1

    def period():
        for t in range(PERIOD):
            for models, grads, center in zip(leaves, gradients(), centers, strict=True):
                pulled = PULL * (models - center) if method == "easgd" else None
                models -= RATE * grads
                if pulled is not None:
                    models -= pulled
                    center += pulled.sum(0)
                elif t == PERIOD - 1:
                    models[:] = models.mean(0)
                elif method == "wagma":
                    groups = models.reshape(-1, GROUP, *models.shape[1:])
                    groups[:] = groups.mean(1 - t % 2, keepdims=True)
        return leaves

    return Run(period)


def in_torch(method: str, problem: Problem, torch: Any) -> Run:
    """A run of a period in eager PyTorch, with a module for each replica."""
    images, labels, (b_0, w_0, b_1, w_1) = on_host(problem)
    examples = list(zip(*map(torch.tensor, (images, labels.astype(int))), strict=True))
    centers = [torch.tensor(leaf) for leaf in (w_0.T, b_0, w_1.T, b_1)]

    def module():
        made = torch.nn.Sequential(
            torch.nn.Linear(*w_0.shape), torch.nn.ReLU(), torch.nn.Linear(*w_1.shape)
        )
        for parameter, start in zip(made.parameters(), centers, strict=True):
            parameter.data.copy_(start)
        return made

    modules = [module() for _ in range(WORKERS)]
    parameters = list(zip(*(m.parameters() for m in modules), strict=True))

    def averaged(t, models, center):
        pulled = [PULL * (x - center) for x in models] if method == "easgd" else []
        for x in models:
            x.sub_(x.grad, alpha=RATE)
        for x, d in zip(models, pulled, strict=False):
            x.sub_(d)
            center.add_(d)
        groups = []
        if method != "easgd" and t == PERIOD - 1:
            groups = [models]
        elif method == "wagma":
            ways = [models[GROUP * g :][:GROUP] for g in range(GROUP)]
            groups = [models[g::GROUP] for g in range(GROUP)] if t % 2 else ways
        for group in groups:
            mean = torch.stack(group).mean(0)
            for x in group:
                x.copy_(mean)

    def period():
        for t in range(PERIOD):
            for model, (image, label) in zip(modules, examples, strict=True):
                model.zero_grad()
                torch.nn.functional.cross_entropy(model(image), label).backward()
            with torch.no_grad():
                for models, center in zip(parameters, centers, strict=True):
                    averaged(t, models, center)
        return parameters

    return Run(period)


def replicas_rows(
    problem: Problem, rows: Mapping[str, Method], rounds: int, torch: Any
) -> list[Row]:
    """A row for each method, beside its limit, its peers and a copy."""
    ours = {name: simulated(problem, method.tx) for name, method in rows.items()}
    ours["none"] = gradient(problem)
    contenders: dict[str, Contender | Run] = {}
    for name in PEERS:
        contenders[f"{name} in NumPy"] = in_numpy(name, problem)
        if torch is not None:
            contenders[f"{name} in eager PyTorch"] = in_torch(name, problem, torch)
    # the contender right after these would find sleeping threads and a cold cache
    contenders["waking"] = ours["none"]
    contenders |= ours
    contenders["copies"] = copy(problem.size, COPIES)
    t = medians(contenders, rounds=rounds)

    item = 4 * problem.size  # bytes of all replicas
    bandwidth = 2 * item / t["copies"]  # bytes/s
    measured: list[Row] = []
    for name, step in ours.items():
        memory = step.compiled.memory_analysis()
        row = {
            "method": name,
            "step ms": 1e3 * t[name],
            "state / PN": memory.output_size_in_bytes / item,
            "temporaries / PN": memory.temp_size_in_bytes / item,
            "copy GB/s": bandwidth / 1e9,
        }
        if name in rows:
            limit = t["none"] + rows[name].models * item / bandwidth
            row |= {"limit ms": 1e3 * limit, "step / limit": t[name] / limit}
        for peer in ("NumPy", "eager PyTorch"):
            if f"{name} in {peer}" in t:
                row[f"step / {peer} (CPU)"] = t[name] * PERIOD / t[f"{name} in {peer}"]
        measured.append(row)
    return measured


def tables(
    rows: Mapping[str, Method], batches: Sequence[int], rounds: int, torch: Any
) -> Iterator[Table]:
    """A table for each number of examples."""
    for examples in batches:
        problem = digits(examples)
        measured = replicas_rows(problem, rows, rounds, torch)
        caption = (
            f"{WORKERS} replicas of {problem.size // WORKERS:,} float32 parameters,"
            f" {examples} examples each, SGD. A copy of the replicas reaches"
            f" {measured[0]['copy GB/s']:.1f} GB/s."
        )
        yield Table(caption, REPLICAS, measured)


def find_torch() -> Any:
    """The module of PyTorch, with one thread; None if it is not installed."""
    try:
        import torch  # no extra of delayjax installs it
    except ImportError:
        return None
    torch.set_num_threads(1)  # with operators this small more threads are slower
    return torch


def main() -> None:
    """Prints a table for each number of examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="periods of each")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=BATCHES, help="examples a replica"
    )
    args = parser.parse_args()
    torch = find_torch()
    if torch is None:
        print("No PyTorch: pip install torch fills its column.\n")
    print(f"{heading()}; medians\n")
    for table in tables(methods(), args.batch, args.rounds, torch):
        table.show()


if __name__ == "__main__":
    main()
