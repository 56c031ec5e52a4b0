"""Records the compiled modules beside it, which `recorded_modules_test.py` counts.

    export JAX_PLATFORMS=cpu
    python -m tests.experiments.pods.recorded.record tpu_slice two_slices
    python -m tests.experiments.pods.recorded.record gpu

Made with jax 0.10.2 and libtpu 0.0.42.1 (`pip install -e '.[tpu]'`), or the plugin for
CUDA 13 (`'.[cuda]'`); no TPU and no GPU is needed. Of the text that XLA prints all is
kept but metadata, tables of source lines, and the keys of `backend_config` that nobody
reads. What another version compiles has other times: count them again by hand.
"""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import delayjax as dj
from delayjax._src.ground import xla
from experiments.pods import chips

KEYS = (
    *("estimated_cycles", "iteration_bounds", "known_trip_count"),
    *("lhs_contracting_dimensions", "rhs_contracting_dimensions"),
)


def gradient(weight, x):
    """Two products, and a loop over [rows, width] between them."""
    return x.T @ jnp.tanh(x @ weight)


def tpu_slice(axes):
    """A late sum, a shift to a neighbor, a reduce-scatter; a loss beside the sum."""

    def step(weight, outbox, x, shifted, share, logits):
        sent = jax.lax.psum(outbox, axes)
        fresh = gradient(weight, x)
        loss = jnp.sum(jnp.log1p(jnp.square(logits)))
        sent, loss = xla.barrier([sent, loss])
        ring = [(i, (i + 1) % 4) for i in range(4)]
        shifted = jax.lax.ppermute(shifted, axes, ring)
        share = jax.lax.psum_scatter(share, axes, tiled=True)
        return weight - sent, fresh, shifted, share, loss[None]

    return step


def two_slices(axes):
    """Shares are summed between slices beside products, then gathered in a slice."""
    groups, members = axes

    def step(weight, outbox, x, age):
        sent, age = (jax.lax.psum(each, groups) for each in (outbox, age))
        fresh = gradient(weight, x)
        sent, fresh, age = xla.barrier([sent, fresh, age])
        share = jax.lax.psum_scatter(fresh, members, tiled=True)
        return weight - jax.lax.all_gather(sent, members, tiled=True), share, age

    return step


def gpu(axes):
    """A late sum beside two products, and a fresh one behind them."""

    def step(weight, outbox, x):
        sent = jax.lax.psum(outbox, axes)
        fresh = gradient(weight, x)
        sent, fresh = xla.barrier([sent, fresh])
        return weight - sent, jax.lax.psum(fresh, axes)

    return step


W = 2048
MODULES = {  # name -> topology, sizes of the mesh, step, shapes of a device's arguments
    "tpu_slice": (
        *("v5e:2x2", (4,), tpu_slice),
        [(W, W), (W, W), (W, W), (W, 512), (W, 512), (W, 8 * W)],
    ),
    "two_slices": (
        *("2*v5e:2x2", (2, 4), two_slices),
        [(W, W), (512, W), (8 * W, W), (1,)],
    ),
    "gpu": ("h100:1x1x8", (8,), gpu, [(W, W), (W, W), (4 * W, W)]),
}


def record(name: str) -> str:
    """The text of a module, cut."""
    topology, sizes, make, shapes = MODULES[name]
    place = chips.topology(topology)
    devices = sorted(place.devices(), key=lambda d: getattr(d, "slice_index", 0))
    names = ("groups", "members")[-len(sizes) :]
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = Mesh(np.reshape(devices, sizes), names, axis_types=kinds)

    def of_device(weight, *others):
        results = make(names if len(names) > 1 else names[0])(
            weight, *(leaf[0] for leaf in others)
        )
        return jax.tree.map(lambda leaf: leaf[None], results)

    mapped = jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(P(), *(P(names) for _ in shapes[1:])),
        out_specs=P(names),
        check_vma=False,
    )
    arguments = [
        jax.ShapeDtypeStruct(
            shape if i == 0 else (len(devices), *shape),
            jnp.bfloat16,
            sharding=NamedSharding(mesh, P() if i == 0 else P(names)),
        )
        for i, shape in enumerate(shapes)
    ]
    options = dj.exchange.overlap_options(devices[0])
    lowered = jax.jit(mapped, compiler_options=options).lower(*arguments)
    return cut(lowered.compile(compiler_options=place.compiler_options).as_text())


def cut(text: str) -> str:
    """Without what is not read."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r", (?:metadata|origin)=\{.*?\}(?=$|, )", "", line)
        head, result, config = line.partition(", backend_config=")
        if result:
            kept = [
                match[0]
                for key in KEYS
                if (match := re.search(rf'"{key}":("\d+"|\[.*?\]|\{{.*?\}})', config))
            ]
            line = head + (f", backend_config={{{','.join(kept)}}}" if kept else "")
        lines.append(line)
    kept = "\n".join(lines)
    tables = r"(?:FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n"
    return re.sub(r"\n{3,}", "\n\n", re.sub(tables, "", kept, flags=re.S))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        path = Path(__file__).with_name(f"{each}.hlo")
        path.write_text(record(each).rstrip() + "\n")
        print(f"{path}: {path.stat().st_size} bytes")
