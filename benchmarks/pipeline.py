"""The cost of a tick of a pipeline: compared with its stages alone, and on a pod.

    python -m benchmarks.pipeline
    python -m benchmarks.pipeline --topology=v5e:4x4

The first command runs a tick of `pipelines.run` on 8 devices of the CPU. It is compared
with the computation of its stages alone: a stage's forward pass, its backward pass with
recomputed activations, and its update, on one device, times the number of stages. In
the same rounds `pipelines.mixed` takes the same updates on one device.

The second command compiles a tick for a pod that need not exist (docs/pods.md: it needs
the extra `tpu` or `cuda`). The time of the computation, and how long a tick waits for
messages, are estimated from the compiled schedule. The bubble is given for the same
model under GPipe and 1F1B with `--microbatches` microbatches in an update.
"""

import argparse
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.side_by_side import Contender, heading, medians
from benchmarks.tables import Table
from delayjax import pipelines
from experiments.pods import chips, compile_pod

TARGET = 1.3  # of a tick over the sum of its stages alone
HEADS = 8


def transformer(vocab: int, dtype: Any) -> pipelines.Parts:
    """The parts of a decoder in plain JAX; a batch is tokens, [B, T + 1]."""

    def normed(x):
        x = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return (x * scale).astype(dtype)

    def embed(p, tokens, key):
        # one-hot: the gradient of a gather is a scatter, slow on a CPU
        return jax.nn.one_hot(tokens[:, :-1], vocab, dtype=dtype) @ p.astype(dtype)

    def block(p, x, key):
        q, k, v = (
            part.reshape(*x.shape[:2], HEADS, -1)
            for part in jnp.split(normed(x) @ p["qkv"].astype(dtype), 3, axis=-1)
        )
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.reshape(x.shape) @ p["out"].astype(dtype)
        return x + jax.nn.gelu(normed(x) @ p["up"].astype(dtype)) @ p["down"].astype(
            dtype
        )

    def head(p, x, tokens):
        logits = (normed(x) @ p.astype(dtype)).astype(jnp.float32)
        wanted = jax.nn.one_hot(tokens[:, 1:], vocab)
        return optax.softmax_cross_entropy(logits, wanted).mean()

    return pipelines.Parts(embed, block, head)


def shapes(layers: int, width: int, vocab: int) -> dict[str, Any]:
    """The shapes of the parameters."""

    def matrix(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    blocks = {
        "qkv": matrix(layers, width, 3 * width),
        "out": matrix(layers, width, width),
        "up": matrix(layers, width, 4 * width),
        "down": matrix(layers, 4 * width, width),
    }
    return {
        "embed": matrix(vocab, width),
        "blocks": blocks,
        "head": matrix(width, vocab),
    }


def drawn(like: Any) -> Any:
    """Random parameters of these shapes."""
    leaves, tree = jax.tree.flatten(like)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return tree.unflatten(
        jax.random.normal(key, leaf.shape) / leaf.shape[-2] ** 0.5
        for key, leaf in zip(keys, leaves, strict=True)
    )


def measured(args: argparse.Namespace) -> None:
    """Measures a tick and its stages, and prints the table."""
    stages, tx = args.stages, optax.adam(1e-3)
    parts = transformer(args.vocab, jnp.float32)
    params = drawn(shapes(args.layers, args.width, args.vocab))
    batch = jnp.zeros((args.batch, args.context + 1), jnp.int32)
    schedule = pipelines.pipedream(stages, in_flight="full")
    mesh = jax.make_mesh((stages,), ("stages",), axis_types=(AxisType.Auto,))
    pipe = pipelines.run(parts, tx, schedule, mesh)
    simulated = pipelines.mixed(parts, tx, schedule)

    stage = parts.cut(params, stages)[0]
    x = jnp.zeros((args.batch, args.context, args.width))

    def alone(state, x):
        params, opt_state = state
        blocks = {"blocks": params}

        def forward(p, x):
            return parts.through_blocks(p["blocks"], x, None, 0)

        sent = forward(blocks, x)
        _, pull = jax.vjp(forward, blocks, jax.lax.optimization_barrier(x))
        grads, delta = pull(sent)
        moves, opt_state = tx.update(grads["blocks"], opt_state, params)
        return optax.apply_updates(params, moves), opt_state, jnp.sum(delta)

    first = stage["blocks"]
    contenders = {
        "tick": Contender(
            lambda s, b: pipe.step(s, b)[0], pipe.init(params, batch), batch
        ),
        "stage": Contender(
            lambda s, x: alone(s[:2], x), (first, tx.init(first), jnp.zeros(())), x
        ),
        "simulated": Contender(
            lambda s, b: simulated.step(s, b)[0], simulated.init(params, batch), batch
        ),
    }
    rounds: list[dict[str, float]] = []
    for _ in range(args.rounds):
        rounds.append(medians(contenders, rounds=3, warmup=1))
    ratio = statistics.median(r["tick"] / (stages * r["stage"]) for r in rounds)
    took = {name: statistics.median(r[name] for r in rounds) for name in contenders}
    rows = [
        {
            "stages": stages,
            "tick ms": 1e3 * took["tick"],
            "stages alone ms": 1e3 * stages * took["stage"],
            "tick / stages alone": ratio,
            "mixed ms": 1e3 * took["simulated"],
        }
    ]
    columns = dict.fromkeys(rows[0], "{:.1f}") | {"stages": "{}"}
    columns["tick / stages alone"] = "{:.2f}"
    caption = (
        f"{heading()}; {args.layers} blocks of width {args.width}, {args.batch} x"
        f" {args.context} tokens, Adam; goal {TARGET}"
    )
    Table(caption, columns, rows).show()


def compiled(args: argparse.Namespace) -> None:
    """Compiles a tick for a pod, with a stash and without, and prints the table."""
    place = chips.topology(args.topology)
    devices, stages = np.array(place.devices()), args.stages
    mesh = Mesh(devices.reshape(stages, -1), ("stages", "data"))
    parts = transformer(args.vocab, jnp.bfloat16)
    everywhere = NamedSharding(mesh, P())

    def placed(like):
        return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=everywhere)

    params = jax.tree.map(placed, shapes(args.layers, args.width, args.vocab))
    examples = args.batch * mesh.shape["data"]
    batch = placed(jax.ShapeDtypeStruct((examples, args.context + 1), jnp.int32))

    def row(stash):
        schedule = pipelines.pipedream(stages, stash=stash, in_flight="full")
        pipe = pipelines.run(parts, optax.adam(1e-3), schedule, mesh)
        init = jax.jit(pipe.init).lower(params, batch)
        state = jax.tree.map(
            lambda like, sharding: jax.ShapeDtypeStruct(
                like.shape, like.dtype, sharding=sharding
            ),
            init.out_info,
            init.compile(compiler_options=place.compiler_options).output_shardings,
        )
        tick = jax.jit(pipe.step, donate_argnums=0)
        report = compile_pod.examine(tick, (state, batch), place)
        large = [c for c in report.collectives if c.num_bytes > 1000]
        cells: dict[str, Any] = {
            "stash": str(stash),
            "GiB": report.needed_bytes / 2**30,
        }
        # permutations between stages, and means of gradients over the data
        kinds = {"permute": "collective-permute", "reduce": "all-reduce"}
        for name, kind in kinds.items():
            of_kind = [c for c in large if c.kind == kind]
            cells |= {
                f"{name}s": len(of_kind),
                f"{name} MB": sum(c.num_bytes for c in of_kind) / 1e6,
                f"{name} ms": 1e3 * sum(c.sending_seconds for c in of_kind),
                f"{name}s wait ms": 1e3 * sum(c.waiting_seconds for c in of_kind),
            }
        seconds = report.seconds + report.waiting_seconds
        return cells | {"tick ms": 1e3 * seconds}

    columns = {"stash": "{}", "GiB": "{:.2f}"}
    for name in ("permute", "reduce"):
        columns |= {f"{name}s": "{}", f"{name} MB": "{:.1f}"}
        columns |= {f"{name} ms": "{:.2f}", f"{name}s wait ms": "{:.2f}"}
    columns["tick ms"] = "{:.2f}"
    flushed = [
        pipelines.gpipe(stages, args.microbatches),
        pipelines.one_f_one_b(stages, args.microbatches),
        pipelines.one_f_one_b(stages, args.microbatches, chunks=2),
    ]
    bubbles = ", ".join(f"{s.name} {s.bubble_share:.0%}" for s in flushed)
    caption = (
        f"{args.topology}, {stages} stages x {mesh.shape['data']} parts of the data;"
        f" {args.layers} blocks of width {args.width}, {args.batch} x {args.context}"
        f" tokens a device, bfloat16, Adam. Idle with {args.microbatches} microbatches:"
        f" {bubbles}"
    )
    Table(caption, columns, map(row, (True, False))).show()


def main() -> None:
    """Prints the table of measured times, or of a pod with `--topology`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", help="to compile for, as v5e:4x4 or h100:1x1x8")
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, help="256, or 1024 for a pod")
    parser.add_argument("--vocab", type=int, help="256, or 32768 for a pod")
    parser.add_argument("--batch", type=int, default=8, help="examples a device")
    parser.add_argument("--context", type=int, help="64, or 1024 for a pod")
    parser.add_argument("--microbatches", type=int, default=32, help="for the bubbles")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sizes = dict(width=1024, vocab=32768, context=1024)
    if not args.topology:
        sizes = dict(width=256, vocab=256, context=64)
    for name, size in sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, size)
    if args.topology:
        compiled(args)
        return
    jax.config.update("jax_num_cpu_devices", args.stages)
    jax.config.update("jax_platforms", "cpu")  # before any device is looked for
    measured(args)


if __name__ == "__main__":
    main()
