"""Modules written by hand, a line of the schedule at a time, and modules that XLA made.

A product takes a second at `SPEED`, and a sum of 256 bytes over two devices takes one.
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.pods import exchanges, hlo, work

M, K, N = 8, 32, 16
FLOPS = 2.0 * M * K * N  # of a product
LINK = 256.0  # bytes/s
SPEED = work.Speed(flops=FLOPS, link=LINK)

OPERANDS = """
%x = f32[64]{0} parameter(0)
%a = f32[8,32]{1,0} parameter(1)
%b = f32[32,16]{1,0} parameter(2)
"""
CONTRACTED = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
PRODUCT = f"%c = f32[8,16]{{1,0}} dot(%a, %b), {CONTRACTED}"
HALF = PRODUCT.replace("f32[8,16]", "f32[4,16]")
PAIRS = "replica_groups={{0,1},{2,3}}, to_apply=%sum"


def start(number=0):
    """A sum of `%x` sets out."""
    return f"%go.{number} = f32[64]{{0}} all-reduce-start(%x), {PAIRS}"


def done(number=0, entries=64):
    """It is waited for; what comes out may be larger."""
    return f"%came.{number} = f32[{entries}]{{0}} all-reduce-done(%go.{number})"


def module(*lines, header="num_partitions=4", **computations):
    """A module whose entry computation has these lines, after its operands."""
    called = [_computation(f"%{name} ()", text) for name, text in computations.items()]
    entry = _computation("ENTRY %main ()", OPERANDS + "\n".join(lines))
    first = f"HloModule m, is_scheduled=true, {header}"
    return hlo.parse("\n".join([first, *called, entry]))


def _computation(head, text):
    lines = "\n".join(f"  {line.strip()}" for line in text.strip().splitlines())
    return f"{head} -> f32[] {{\n{lines}\n}}"


def collectives(*lines, speed=SPEED, **keywords):
    """Those of `module`."""
    return exchanges.collectives(module(*lines, **keywords), speed)


def only(result):
    """The one that there is."""
    (one,) = result
    return one


def compiled(function, *shapes):
    """A module that XLA made of float32 arrays, and the FLOPs that it counts itself."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = jax.jit(function).lower(*arguments).compile()
    counted = program.cost_analysis().get("flops", np.nan)
    return hlo.parse(program.as_text()), counted
