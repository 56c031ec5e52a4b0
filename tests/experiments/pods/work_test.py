"""FLOPs, bytes and the time of a module's computation, beside recorded modules."""

import functools

import jax
import jax.numpy as jnp
import pytest

from experiments.pods import hlo, work
from tests.experiments.pods.written import (
    CONTRACTED,
    FLOPS,
    PRODUCT,
    SPEED,
    compiled,
    module,
)

CONVOLUTION = functools.partial(
    jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC")
)
UNIT = dict(window_strides=(1, 1))
DILATED = dict(padding=((1, 2), (0, 1)), lhs_dilation=(2, 1), rhs_dilation=(1, 2))
WINDOWS = [  # the kernel, and how it goes over the image
    ((3, 2, 4, 8), dict(padding="VALID") | UNIT),
    ((3, 2, 4, 8), dict(padding="SAME", window_strides=(2, 3))),
    ((3, 2, 4, 8), DILATED | UNIT),
    ((3, 2, 1, 8), dict(padding="SAME", feature_group_count=4) | UNIT),
]


@pytest.mark.parametrize(
    "function, shapes",
    [
        (jnp.matmul, [(64, 32), (32, 16)]),
        (functools.partial(jnp.einsum, "bij,bkj->bik"), [(5, 64, 32), (5, 16, 32)]),
        *(
            (functools.partial(CONVOLUTION, **window), [(2, 12, 13, 4), kernel])
            for kernel, window in WINDOWS
        ),
    ],
)
def test_flops_are_those_that_xla_counts(function, shapes):
    made, counted = compiled(function, *shapes)
    assert work.flops(made) == pytest.approx(counted, rel=0.02)
    assert counted > 10_000


@pytest.mark.parametrize(
    "target, flops", [("__cublas$lt$matmul", FLOPS), ("annotate", 0)]
)
def test_a_call_of_cublas_counts_as_its_product(target, flops):
    key = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
    call = PRODUCT.replace("f32[8,16]{1,0} dot", "(f32[8,16], s8[9]) custom-call")
    call = call.replace(
        CONTRACTED,
        f'custom_call_target="{target}", backend_config={{"gemm_backend_config"'
        f':{{"dot_dimension_numbers":{{{key}}}}}}}',
    )
    assert work.flops(module(call)) == flops


PART = """
%p = f32[64,64]{1,0} parameter(0)
%q = f32[1,64]{1,0} parameter(1)
%i = s32[] parameter(2)
"""
ROW = 256  # bytes; an index has 4
FUSED = {  # fused computation -> the bytes that it moves
    "loop": ("ROOT %r = f32[64,64]{1,0} negate(%p)", 2 * 64 * ROW),
    "cut": ("ROOT %r = f32[1,64]{1,0} dynamic-slice(%p, %i, %i)", 2 * ROW + 4),
    "cut of a view": (
        "%v = f32[4096]{0} bitcast(%p)\nROOT %r = f32[64]{0} dynamic-slice(%v, %i)",
        2 * ROW + 4,
    ),
    "cut and read": (
        "%c = f32[1,64]{1,0} dynamic-slice(%p, %i, %i)\n"
        "%n = f32[64,64]{1,0} negate(%p)\n"
        "ROOT %r = (f32[1,64]{1,0}, f32[64,64]{1,0}) tuple(%c, %n)",
        2 * 64 * ROW + ROW + 4,
    ),
    "write in place": (
        "ROOT %r = f32[64,64]{1,0} dynamic-update-slice(%p, %q, %i, %i)",
        2 * ROW + 4,
    ),
    "scatter": (
        "ROOT %r = f32[64,64]{1,0} scatter(%p, %i, %q), to_apply=%sum",
        3 * ROW + 4,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_of_an_array_that_is_used_in_part_the_part_is_counted(name):
    lines, moved = FUSED[name]
    fusion = "%f = f32[64,64]{1,0} fusion(%p, %q, %i), kind=kLoop, calls=%fused"
    made = module(*PART.splitlines(), fusion, fused=PART + lines)
    assert work.seconds(made, SPEED._replace(memory=1.0)) == moved


def test_an_estimate_that_the_compiler_does_not_have_is_not_read():
    """It prints 2^63 - 1 cycles; the fusion reads and writes 256 bytes each."""
    cycles = f'backend_config={{"estimated_cycles":"{2**63 - 1}"}}'
    loop = f"%l = f32[64]{{0}} fusion(%x), kind=kLoop, calls=%f, {cycles}"
    body = "%p = f32[64]{0} parameter(0)\nROOT %n = f32[64]{0} negate(%p)"
    speed = SPEED._replace(hertz=100.0, memory=256.0)
    assert work.seconds(module(loop, f=body), speed) == 2.0


SUM = "%r = f32[64]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum"


@pytest.mark.parametrize(
    "bounds, longer",  # the steps of a loop less an eighth of them, rounded up
    [('"1"', 0), ('"2","4"', 8 - 1), ('"9"', 9 - 2), ('"3","32"', 96 - 12)],
)
@pytest.mark.parametrize("carries", [True, False])
def test_a_loop_over_tiles_takes_smaller_steps_while_it_carries_a_sum(
    bounds, longer, carries
):
    """A million cycles at 1 MHz; each step takes 2 ms to begin."""
    tiles = f'{{"estimated_cycles":"1000000","iteration_bounds":[{bounds}]}}'
    line = f"%u = f32[64]{{0}} fusion(%x), calls=%update, backend_config={tiles}"
    body = "\n".join(["%p = f32[64]{0} parameter(0)", *[SUM] * carries])
    made = module(line, update=body)
    result = work.Work(made, SPEED._replace(hertz=1e6, step_seconds=2e-3))
    *_, loop = made.computations["main"]
    assert isinstance(loop, hlo.Instruction)
    carrying = longer * 2e-3 * carries
    assert result.carrying_seconds(loop) == pytest.approx(carrying)
    assert result.seconds("main") == pytest.approx(1.0 - carrying)
