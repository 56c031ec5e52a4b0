"""Collectives, time and FLOPs of modules written by hand, and of XLA's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.pods import exchanges, hlo, work

M, K, N = 8, 32, 16
PRODUCT = 2.0 * M * K * N  # FLOPs
LINK = 256.0  # bytes/s: a sum of 256 bytes over two devices takes a second
SPEED = work.Speed(flops=PRODUCT, link=LINK)  # and so does a product
MINE = P("workers")

# sums of f32[64]: 256 bytes
STARTED = """
  %x = f32[64]{0} parameter(0)
  %a = f32[8,32]{1,0} parameter(1)
  %b = f32[32,16]{1,0} parameter(2)
  %go = f32[64]{0} all-reduce-start(%x), replica_groups={{0,1},{2,3}}, to_apply=%sum
"""
PRODUCT_LINE = """
  %c = f32[8,16]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
DONE = """
  %came = f32[64]{0} all-reduce-done(%go)
"""
RESULT = """
  ROOT %both = (f32[64]{0}, f32[8,16]{1,0}) tuple(%came, %c)
"""


def module(entry, *computations, header="num_partitions=4"):
    """A module whose entry computation has these lines."""
    called = "\n".join(
        f"%{name} (p: f32[]) -> f32[] {{{lines}}}" for name, lines in computations
    )
    text = f"HloModule m, is_scheduled=true, {header}\n{called}\nENTRY %main () {{"
    return hlo.parse(f"{text}{entry}}}")


def collectives(*arguments, speed=SPEED, **keywords):
    return exchanges.collectives(module(*arguments, **keywords), speed)


def only(found):
    (one,) = found
    return one


def compiled(function, *arguments):
    """A module that XLA made, and the FLOPs that it counts itself."""
    program = jax.jit(function).lower(*arguments).compile()
    counted = program.cost_analysis().get("flops", 0.0)
    return hlo.parse(program.as_text()), counted


def float32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def over_workers(function, in_specs=MINE, out_specs=MINE):
    mesh = jax.make_mesh((4,), ("workers",), axis_types=(AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def test_a_product_between_start_and_end_hides_a_sum():
    one = only(collectives(STARTED + PRODUCT_LINE + DONE + RESULT))
    assert one == exchanges.Collective(
        kind="all-reduce",
        name="go",
        num_bytes=4 * 64,
        dtype="f32",
        group_size=2,
        between_slices=False,
        asynchronous=True,
        times=1,
        beside_seconds=1.0,
        carrying_seconds=0.0,
        bandwidth=LINK,
    )
    assert (one.sent_bytes, one.needed_bandwidth) == (256, LINK)
    assert one.hidden
    assert one.waiting_seconds == 0
    # if the network is not known, neither is this
    assert one._replace(bandwidth=0.0).waiting_seconds == np.inf


@pytest.mark.parametrize(
    "lines",
    [
        PRODUCT_LINE + STARTED + DONE + RESULT,
        STARTED + DONE + PRODUCT_LINE + RESULT,
    ],
    ids=["product before", "product after"],
)
def test_a_product_outside_of_start_and_end_hides_nothing(lines):
    one = only(collectives(lines))
    assert one.asynchronous
    assert (one.beside_seconds, one.needed_bandwidth) == (0, np.inf)
    assert not one.hidden
    assert one.waiting_seconds == one.sent_bytes / LINK


def test_a_plain_sum_is_synchronous():
    line = "\n  %came = f32[64]{0} all-reduce(%x), replica_groups={}, to_apply=%sum\n"
    start = STARTED[: STARTED.index("  %go")]
    one = only(collectives(start + line + PRODUCT_LINE + RESULT))
    assert (one.asynchronous, one.hidden) == (False, False)
    assert one.waiting_seconds == one.sent_bytes / LINK
    assert one.group_size == 4  # {}: all devices


@pytest.mark.parametrize("numbers, hidden", [(64, True), (65, False)])
def test_hidden_is_what_the_link_sends_while_the_product_runs(numbers, hidden):
    one = only(
        collectives(
            STARTED.replace("f32[64]{0}", f"f32[{numbers}]{{0}}") + PRODUCT_LINE + DONE
        )
    )
    assert one.needed_bandwidth == 4 * numbers
    assert one.hidden == hidden
    assert one.waiting_seconds == 4 * numbers / LINK - 1  # the product's second


OPERANDS = STARTED[: STARTED.index("  %go")]


def started(number):
    groups = "replica_groups={{0,1},{2,3}}, to_apply=%sum"
    return f"  %go.{number} = f32[64]{{0}} all-reduce-start(%x), {groups}\n"


def ended(number):
    return f"  %came.{number} = f32[64]{{0}} all-reduce-done(%go.{number})\n"


@pytest.mark.parametrize("products", [1, 2, 3])
def test_sums_that_are_under_way_together_share_their_link(products):
    """A second each: a later one has what is left of the products' time."""
    lines = OPERANDS + "".join(map(started, range(3))) + products * PRODUCT_LINE
    found = collectives(lines + "".join(map(ended, range(3))))
    assert [c.beside_seconds for c in found] == [max(0, products - i) for i in range(3)]
    assert [c.hidden for c in found] == [products > i for i in range(3)]


def test_a_sum_that_starts_when_the_link_is_free_has_all_of_the_time():
    lines = OPERANDS + started(0) + PRODUCT_LINE + started(1) + PRODUCT_LINE
    found = collectives(lines + ended(0) + ended(1))
    assert [c.beside_seconds for c in found] == [2.0, 1.0]
    assert all(c.hidden for c in found)


CYCLES = 'backend_config={"estimated_cycles":"300"}'


def test_a_compiler_s_own_estimate_comes_first():
    """300 cycles at 100 Hz; an instruction without an estimate takes no time."""
    loop = f"  %l = f32[64]{{0}} fusion(%x), kind=kLoop, calls=%f, {CYCLES}\n"
    speed = SPEED._replace(hertz=100.0)
    body = ("f", "\n  %p = f32[64]{0} parameter(0)\n")
    lines = STARTED + PRODUCT_LINE + loop + DONE
    assert only(collectives(lines, body, speed=speed)).beside_seconds == 3.0
    assert work.seconds(module(lines, body), speed) == 3.0
    assert work.seconds(module(lines, body), SPEED) == 1.0  # of the product


def test_an_estimate_that_the_compiler_does_not_have_is_not_read():
    """It prints 2^63 - 1 cycles; the fusion reads and writes 256 bytes each."""
    none = CYCLES.replace("300", str(2**63 - 1))
    loop = f"  %l = f32[64]{{0}} fusion(%x), kind=kLoop, calls=%f, {none}\n"
    body = (
        "f",
        "\n  %p = f32[64]{0} parameter(0)\n  ROOT %n = f32[64]{0} negate(%p)\n",
    )
    speed = SPEED._replace(hertz=100.0, memory=256.0)
    assert work.seconds(module(OPERANDS + loop, body), speed) == 2.0


READS = 4 * (M * K + K * N + M * N)  # bytes of a product's operands and its result


@pytest.mark.parametrize("memory", [READS / 3, READS, 3 * READS])
def test_without_a_compiler_s_estimate_the_slower_of_products_and_memory_counts(memory):
    speed = SPEED._replace(memory=memory)
    found = work.seconds(module(OPERANDS + PRODUCT_LINE), speed)
    assert found == max(1.0, READS / memory)


PART = """
  %p = f32[64,64]{1,0} parameter(0)
  %q = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
"""
FUSED = {  # fused computation -> the bytes that it moves; a row has 256
    "loop": ("  ROOT %r = f32[64,64]{1,0} negate(%p)\n", 2 * 64 * 256),
    "cut": ("  ROOT %r = f32[1,64]{1,0} dynamic-slice(%p, %i, %i)\n", 2 * 256 + 4),
    "cut of a view": (
        "  %v = f32[4096]{0} bitcast(%p)\n"
        "  ROOT %r = f32[64]{0} dynamic-slice(%v, %i)\n",
        2 * 256 + 4,
    ),
    "cut and read": (
        "  %c = f32[1,64]{1,0} dynamic-slice(%p, %i, %i)\n  %n = f32[64,64]{1,0} negate"
        "(%p)\n  ROOT %r = (f32[1,64]{1,0}, f32[64,64]{1,0}) tuple(%c, %n)\n",
        2 * 64 * 256 + 256 + 4,
    ),
    "write in place": (
        "  ROOT %r = f32[64,64]{1,0} dynamic-update-slice(%p, %q, %i, %i)\n",
        2 * 256 + 4,
    ),
    "scatter": (
        "  ROOT %r = f32[64,64]{1,0} scatter(%p, %i, %q), to_apply=%sum\n",
        3 * 256 + 4,
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_of_an_array_that_is_used_in_part_the_part_is_counted(name):
    lines, moved = FUSED[name]
    entry = (
        f"{PART}  %f = f32[64,64]{{1,0}} fusion(%p, %q, %i), kind=kLoop, calls=%fused\n"
    )
    speed = SPEED._replace(memory=1.0)
    assert work.seconds(module(entry, ("fused", PART + lines)), speed) == moved


def test_a_shift_to_a_neighbor_has_one_link():
    line = (
        "\n  %x = f32[64]{0} parameter(0)\n  %y = f32[64]{0} collective-permute(%x), "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n"
    )
    speed = SPEED._replace(link=4 * LINK, one_link=LINK)
    assert only(collectives(line, speed=speed)).waiting_seconds == 1.0
    all_sum = line.replace("collective-permute", "all-reduce")
    assert only(collectives(all_sum, speed=speed)).bandwidth == 4 * LINK


def test_a_fused_sum_of_which_a_device_keeps_its_own_part_is_a_reduce_scatter():
    scatter = (
        "all-reduce-scatter",
        """
  %p = f32[64]{0} parameter(0)
  %r = f32[64]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%sum
  ROOT %part = f32[16]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={16}
""",
    )
    line = "  %f = f32[16]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter\n"
    one = only(collectives(OPERANDS + line, scatter))
    assert (one.kind, one.num_bytes, one.sent_bytes) == ("reduce-scatter", 256, 192)
    assert not one.asynchronous
    whole = (scatter[0], scatter[1].replace("dynamic-slice(%r, %i)", "negate(%r)"))
    assert only(collectives(OPERANDS + line, whole)).kind == "all-reduce"


def test_what_is_waited_for_one_sum_is_time_for_the_next():
    """Two seconds for the first, one for the second; products of 1 s and of 0.5 s."""
    half = PRODUCT_LINE.replace("f32[8,16]", "f32[4,16]").replace("%c", "%d")
    lines = OPERANDS + started(0) + started(1) + PRODUCT_LINE + ended(0) + half
    lines = lines.replace("%came.0 = f32[64]", "%came.0 = f32[128]")
    found = collectives(lines + ended(1))
    assert [c.waiting_seconds for c in found] == [1.0, 0.5]


SLICES = """
  %x = f32[64]{0} parameter(0)
  %a = f32[8,32]{1,0} parameter(1)
  %b = f32[32,16]{1,0} parameter(2)
  %t = token[] after-all()
  %s = (f32[64]{0}, u32[], token[]) send(%x, %t), channel_id=2, KEYS
PRODUCT
  %r = (f32[64]{0}, u32[], token[]) recv(%t), channel_id=1, KEYS
PRODUCT
  %sd = token[] send-done(%s), channel_id=2
  %rd = (f32[64]{0}, token[]) recv-done(%r), channel_id=1
""".replace("PRODUCT", PRODUCT_LINE)


@pytest.mark.parametrize(
    "target, kind, slices, sent",
    [
        ("{1,2}x{0:3}", "ALL_REDUCE", 2, 256),
        ("{1,3:5}x{0}", "ALL_REDUCE", 4, 2 * 256 * 3 / 4),
        ("{1:2}x{0}", "REDUCE_SCATTER", 2, 128),
    ],
)
def test_a_send_and_a_recv_between_slices_are_one_collective(
    target, kind, slices, sent
):
    keys = (
        'frontend_attributes={_xla_host_transfer_rendezvous="psum.1_0",'
        f'_xla_megascale_target="{target}",_xla_megascale_transfer_type="{kind}"}}'
    )
    speed = SPEED._replace(network=200.0)
    one = only(collectives(SLICES.replace("KEYS", keys), speed=speed))
    assert one.kind == kind.lower().replace("_", "-")
    assert (one.name, one.num_bytes, one.dtype) == ("s", 256, "f32")
    assert (one.group_size, one.between_slices, one.bandwidth) == (slices, True, 200)
    # it is under way from the send on: beside both products
    assert (one.beside_seconds, one.sent_bytes) == (2.0, sent)
    assert one.hidden == (sent <= 2 * 200)


def test_a_recv_of_a_host_s_callback_is_no_collective():
    keys = 'frontend_attributes={_xla_host_transfer_handler_name="callback"}'
    assert collectives(SLICES.replace("KEYS", keys)) == []


@pytest.mark.parametrize(
    "kind, sent",
    [
        ("all-reduce", 2 * 256 * 3 / 4),
        ("all-gather", 256 * 3 / 4),
        ("reduce-scatter", 256 * 3 / 4),
        ("all-to-all", 256 * 3 / 4),
        ("collective-permute", 256),
    ],
)
def test_what_a_device_sends_at_least(kind, sent):
    line = f"\n  %x = f32[64]{{0}} parameter(0)\n  %y = f32[64]{{0}} {kind}(%x), "
    one = only(collectives(line + "replica_groups={{0,1,2,3}}, to_apply=%sum\n"))
    assert one.sent_bytes == sent


def test_a_call_of_cublas_counts_as_its_product():
    key = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
    line = PRODUCT_LINE.replace("f32[8,16]{1,0} dot", "(f32[8,16], s8[9]) custom-call")
    call = line.replace(
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config"'
        f':{{"dot_dimension_numbers":{{{key}}}}}}}',
    )
    assert "custom-call(%a, %b)" in call
    assert work.flops(module(STARTED + call + DONE)) == PRODUCT
    assert only(collectives(STARTED + call + DONE)).hidden
    other = call.replace("__cublas$lt$matmul", "annotate")
    assert work.flops(module(STARTED + other + DONE)) == 0


def test_a_wrapped_collective_is_found_in_what_is_started():
    wrapped = (
        "wrapped",
        """
  %p = f32[64]{0} parameter(0)
  ROOT %cut = f32[16]{0} reduce-scatter(%p), replica_groups=[1,4]<=[4], dimensions={0}
""",
    )
    started = STARTED[: STARTED.index("  %go")] + (
        "  %go = ((f32[64]), f32[16]{0}, u32[]) async-start(%x), calls=%wrapped\n"
        "  %on = ((f32[64]), f32[16]{0}, u32[]) async-update(%go)\n"
    )
    done = "\n  %came = f32[16]{0} async-done(%on)\n"
    one = only(collectives(started + PRODUCT_LINE + done + RESULT, wrapped))
    assert (one.kind, one.name) == ("reduce-scatter", "go")
    assert one.num_bytes == 4 * 64  # what goes in is larger than what comes out
    assert one.group_size == 4
    assert one.beside_seconds == 1.0


def test_what_no_instruction_here_awaits_is_under_way_to_the_end():
    one = only(collectives(STARTED + PRODUCT_LINE))
    assert (one.asynchronous, one.beside_seconds) == (True, 1.0)


# a TPU's: the sum goes through fusions, and ends in one
CHAIN = (
    (
        "begin",
        """
  %p = bf16[512]{0} parameter(0)
  %r.1 = bf16[512]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}},
 frontend_attributes={chain_id="7"}
  ROOT %t = (bf16[512]{0}, u32[]{:S(2)}) custom-call(%p, %r.1)
""".replace(",\n ", ", "),
    ),
    (
        "product",
        """
  %p = bf16[512]{0:T(1024)(128)(2,1)} parameter(0)
  %a = bf16[8,32]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %b = bf16[32,16]{1,0:T(8,128)(2,1)} parameter(2)
  %c = bf16[8,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
  %r.2 = bf16[512]{0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}},
 frontend_attributes={chain_id="7"}
  ROOT %t = (bf16[8,16]{1,0}, bf16[512]{0}) tuple(%c, %r.2)
""".replace(",\n ", ", "),
    ),
)
CHAINED = """
  %x = bf16[512]{0} parameter(0)
  %a = bf16[8,32]{1,0} parameter(1)
  %b = bf16[32,16]{1,0} parameter(2)
  %async-collective-start = (bf16[512]{0}, /*index=1*/u32[]) fusion(%x), calls=%begin
  %other = bf16[8,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
  %f.1 = (bf16[8,16], bf16[512]) fusion(%x, %a, /*index=2*/%b), calls=%product
  %f.2 = (bf16[8,16], bf16[512]) fusion(%x, %a, /*index=2*/%b), calls=%product
  %async-collective-done = bf16[512]{0} fusion(%x), calls=%begin
"""


def test_a_tpu_chain_is_one_sum_beside_the_products_that_carry_it():
    one = only(collectives(CHAINED, *CHAIN))
    assert one.name == "async-collective-start"
    assert (one.num_bytes, one.dtype, one.group_size) == (2 * 512, "bf16", 4)
    assert one.beside_seconds == 2.0  # not the one that stands by itself
    assert one.needed_bandwidth == 2 * 1024 * 3 / 4 / 2.0
    assert not one.hidden


@pytest.mark.parametrize(
    "bounds, steps, without",
    [('"1"', 1, 1), ('"2","4"', 8, 1), ('"9"', 9, 2), ('"3","32"', 96, 12)],
)
def test_a_loop_over_tiles_takes_smaller_steps_while_it_carries_a_sum(
    bounds, steps, without
):
    """An update of a million cycles at 1 MHz, and two products of 100 beside it.

    Without the sum it has an eighth of the steps, and each takes 2 ms to begin.
    """
    update = (
        "update",
        "\n  %p = bf16[512]{0} parameter(0)\n" + CHAIN[0][1].split("\n")[2],
    )
    tiles = (
        f'backend_config={{"estimated_cycles":"1000000","iteration_bounds":[{bounds}]}}'
    )
    line = f"  %u = (bf16[512]) fusion(%x), calls=%update, {tiles}\n"
    cycles = tiles.replace("1000000", "100")
    products = CHAINED.replace("calls=%product", f"{cycles}, calls=%product")
    before, done = products.rsplit("  %async", 1)
    text = f"{before}{line}  %async{done}"
    speed = SPEED._replace(hertz=1e6, step_seconds=2e-3)
    one = only(collectives(text, *CHAIN, update, speed=speed))
    longer = (steps - without) * 2e-3
    assert one.carrying_seconds == pytest.approx(longer)
    assert one.beside_seconds == pytest.approx(1.0 + 2e-4 - longer)
    computed = work.seconds(module(text, *CHAIN, update), speed)
    assert computed == pytest.approx(one.beside_seconds)
    # it sends for longer than the computation alone would take, or is carried longer
    exposed = max(one.sent_bytes / LINK - one.beside_seconds, longer)
    assert one.waiting_seconds == pytest.approx(exposed)
    fast = one._replace(bandwidth=1e9)
    assert fast.waiting_seconds == pytest.approx(longer)
    assert fast.hidden_seconds == max(0.0, fast.sending_seconds - longer)


def test_a_loop_that_carries_nothing_takes_its_own_time():
    tiles = 'backend_config={"estimated_cycles":"300","iteration_bounds":["96"]}'
    loop = f"  %l = f32[64]{{0}} fusion(%x), kind=kLoop, calls=%f, {tiles}\n"
    body = ("f", "\n  %p = f32[64]{0} parameter(0)\n")
    speed = SPEED._replace(hertz=100.0)
    assert work.seconds(module(OPERANDS + loop, body), speed) == 3.0


def test_a_tpu_chain_without_products_is_not_hidden():
    lines = [line for line in CHAINED.splitlines() if "%f." not in line]
    one = only(collectives("\n".join([*lines, ""]), *CHAIN))
    assert (one.asynchronous, one.hidden) == (True, False)


def test_one_fusion_hides_a_sum_only_if_it_holds_a_product():
    lines = CHAINED.splitlines(keepends=True)
    alone = "".join(
        line for line in lines if "start" not in line and "done" not in line
    )
    held = [(name, body.replace('chain_id="7"', "")) for name, body in CHAIN]
    assert [c.beside_seconds for c in collectives(alone, *held)] == [1.0, 1.0]
    cut = "".join(line for line in lines if "%f." not in line)
    assert [c.asynchronous for c in collectives(cut, *held)] == [False, False]


BODY = ("body", STARTED + PRODUCT_LINE + DONE)
LIMIT = ("limit", "\n  %n = s32[] constant(5)\n  %lt = pred[] compare(%i, %n)")


@pytest.mark.parametrize(
    "loop, limit",
    [
        ('backend_config={"known_trip_count":{"n":"5"}}', ""),
        ("", ", direction=LT\n"),  # as TPUs print it
    ],
    ids=["said", "compared"],
)
def test_what_is_in_a_loop_counts_with_it(loop, limit):
    line = f"\n  %w = (f32[]) while(%t), condition=%limit, body=%body, {loop}\n"
    condition = (LIMIT[0], LIMIT[1] + (limit or "\n"))
    one = only(collectives(line, BODY, condition))
    assert (one.times, one.beside_seconds) == (5, 1.0)
    assert one.hidden
    assert work.flops(module(line, BODY, condition)) == 5 * PRODUCT
    assert work.seconds(module(line, BODY, condition), SPEED) == 5.0


def test_a_loop_of_unknown_length_counts_once():
    line = "\n  %w = (f32[]) while(%t), condition=%limit, body=%body\n"
    condition = ("limit", "\n  %go = pred[] get-tuple-element(%t), index=1\n")
    assert only(collectives(line, BODY, condition)).times == 1
    assert work.flops(module(line, BODY, condition)) == PRODUCT


def test_calls_and_branches_are_looked_into():
    lines = """
  %w = f32[] call(%t), to_apply=%body
  %v = f32[] conditional(%i, %t, %t), branch_computations={%body, %idle}
  %u = f32[] conditional(%i, %t, %t), true_computation=%idle, false_computation=%body
"""
    idle = ("idle", "\n  ROOT %p = f32[] parameter(0)\n")
    assert len(collectives(lines, BODY, idle)) == 3
    # the branch that sends more is listed, whether it is the first or the second
    other = ("idle", BODY[1].replace("f32[64]", "f32[65]"))
    assert [c.num_bytes for c in collectives(lines, BODY, other)] == [256, 260, 260]
    # a conditional runs one of its branches
    assert work.flops(module(lines, BODY, idle)) == 3 * PRODUCT


@pytest.mark.parametrize(
    "groups, size",
    [
        ("{}", 4),
        ("{{0,2},{1,3}}", 2),
        ("[2,2]<=[4]", 2),
        ("[1,4]<=[2,2]T(1,0)", 4),
        ("mesh['g'=2,'m'=3] {'m'}", 3),
        ("mesh['g'=2,'m'=3] {'g','m'}", 6),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", 4),
        ("mesh['a'=2,'b'=8] {'a','b':(1)4}", 8),
    ],
)
def test_the_devices_of_a_group_are_counted(groups, size):
    line = "\n  %x = f32[4]{0} parameter(0)\n  %y = f32[4]{0} all-reduce(%x)"
    one = only(collectives(f"{line}, replica_groups={groups}, to_apply=%sum\n"))
    assert one.group_size == size


@pytest.mark.parametrize("header, size", [("replica_count=3", 3), ("entry=x", 1)])
def test_the_header_says_how_many_devices_there_are(header, size):
    line = "\n  %x = f32[4]{0} parameter(0)\n  %y = f32[4]{0} all-reduce(%x), a={}\n"
    assert only(collectives(line, header=header)).group_size == size


@pytest.mark.parametrize(
    "shape, size",
    [
        ("f32[]", 4),
        ("pred[7]{0}", 7),
        ("bf16[0,5]{1,0}", 0),
        ("s4[10]{0:T(128)}", 5),
        ("f8e4m3fn[<=6]{0}", 6),
        ("(c64[2], token[], (u32[3]{0:S(2)}))", 28),
    ],
)
def test_bytes_of_a_type(shape, size):
    assert hlo.shape_bytes(shape) == size


def test_a_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("nothing")


def test_a_sum_over_four_devices_is_one_all_reduce():
    summed = over_workers(lambda x: jax.lax.psum(x, "workers"), out_specs=P())
    one = only(exchanges.collectives(compiled(summed, float32(8, 6))[0], SPEED))
    assert (one.kind, one.dtype, one.group_size) == ("all-reduce", "f32", 4)
    assert one.num_bytes == 4 * 2 * 6  # of a device
    assert (one.asynchronous, one.times) == (False, 1)


def test_merged_sums_are_one_with_the_bytes_of_all():
    summed = over_workers(lambda *x: jax.lax.psum(x, "workers"), out_specs=P())
    module, _ = compiled(summed, float32(8, 6), float32(4))
    found = exchanges.collectives(module, SPEED)
    assert len(found) == 1  # XLA merges them on a CPU
    assert found[0].num_bytes == 4 * (2 * 6 + 1)


@pytest.mark.parametrize(
    "kind, function, size",
    [
        ("all-gather", lambda x: jax.lax.all_gather(x, "workers"), 4 * 4 * 4 * 6),
        ("reduce-scatter", lambda x: jax.lax.psum_scatter(x, "workers"), 4 * 4 * 6),
        ("all-to-all", lambda x: jax.lax.all_to_all(x, "workers", 0, 0), 4 * 4 * 6),
        (
            "collective-permute",
            lambda x: jax.lax.ppermute(
                x, "workers", [(i, (i + 1) % 4) for i in range(4)]
            ),
            4 * 4 * 6,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_is_found_with_its_bytes(kind, function, size):
    module, _ = compiled(over_workers(function), float32(16, 6))
    one = only(exchanges.collectives(module, SPEED))
    assert (one.kind, one.num_bytes, one.group_size) == (kind, size, 4)


def test_groups_of_two_axes_are_those_of_the_axis():
    mesh = jax.make_mesh((2, 2), ("groups", "members"), axis_types=2 * (AxisType.Auto,))
    both = NamedSharding(mesh, P(("groups", "members")))
    rows = jax.ShapeDtypeStruct((16, 6), jnp.float32, sharding=both)
    members = jax.shard_map(
        lambda x: jax.lax.psum(x, "members"),
        mesh=mesh,
        in_specs=P(("groups", "members")),
        out_specs=P("groups"),
    )
    module, _ = compiled(members, rows)
    assert only(exchanges.collectives(module, SPEED)).group_size == 2


def test_a_scan_repeats_its_sums():
    def steps(x):
        def body(x, _):
            mine = jax.lax.pcast(x @ x, "workers", to="varying")
            return jax.lax.psum(mine, "workers"), None

        return jax.lax.scan(body, x, length=5)[0]

    module, _ = compiled(over_workers(steps, P(), P()), float32(16, 16))
    assert only(exchanges.collectives(module, SPEED)).times == 5
    assert work.flops(module) == pytest.approx(5 * 2 * 16**3, rel=0.01)


CONVOLUTION = functools.partial(
    jax.lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC")
)


@pytest.mark.parametrize(
    "function, shapes",
    [
        (jnp.matmul, [(64, 32), (32, 16)]),
        (functools.partial(jnp.einsum, "bij,bkj->bik"), [(5, 64, 32), (5, 16, 32)]),
        *(
            (functools.partial(CONVOLUTION, **window), [(2, 12, 13, 4), kernel])
            for kernel, window in [
                ((3, 2, 4, 8), dict(window_strides=(1, 1), padding="VALID")),
                ((3, 2, 4, 8), dict(window_strides=(2, 3), padding="SAME")),
                (
                    (3, 2, 4, 8),
                    dict(
                        window_strides=(1, 1),
                        padding=((1, 2), (0, 1)),
                        lhs_dilation=(2, 1),
                        rhs_dilation=(1, 2),
                    ),
                ),
                (
                    (3, 2, 1, 8),
                    dict(window_strides=(1, 1), padding="SAME", feature_group_count=4),
                ),
            ]
        ),
    ],
)
def test_flops_are_those_that_xla_counts(function, shapes):
    module, counted = compiled(function, *(float32(*shape) for shape in shapes))
    assert work.flops(module) == pytest.approx(counted, rel=0.02)
    assert counted > 10_000
