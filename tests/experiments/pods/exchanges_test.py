"""The collectives of a module, and what hides them."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from experiments.pods import exchanges, work
from tests.experiments.pods.written import (
    HALF,
    LINK,
    PAIRS,
    PRODUCT,
    SPEED,
    collectives,
    compiled,
    done,
    only,
    start,
)

ONE = exchanges.Collective(  # a sum of f32[64] beside a product of a second
    kind="all-reduce",
    name="go.0",
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


def test_a_product_between_start_and_end_hides_a_sum():
    assert only(collectives(start(), PRODUCT, done())) == ONE
    assert (ONE.sent_bytes, ONE.needed_bandwidth) == (256, LINK)
    assert ONE.hidden and ONE.waiting_seconds == 0
    larger = ONE._replace(num_bytes=260)
    assert not larger.hidden
    assert larger.waiting_seconds == 260 / LINK - 1  # minus the second of the product
    # if the speed of the network is not known, this is not known
    assert ONE._replace(bandwidth=0.0).waiting_seconds == np.inf
    assert ONE._replace(beside_seconds=0.0).needed_bandwidth == np.inf


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
    assert ONE._replace(kind=kind, group_size=4).sent_bytes == sent


PLAIN = f"%came = f32[64]{{0}} all-reduce(%x), {PAIRS}"
ALL = start(0), start(1), start(2), *[done(i) for i in range(3)]
SCHEDULES = {  # lines -> for each sum, the seconds beside it, and those that it costs
    "product before": ((PRODUCT, start(), done()), [(0, 1)]),
    "product after": ((start(), done(), PRODUCT), [(0, 1)]),
    "synchronous": ((PLAIN, PRODUCT), [(0, 1)]),
    "awaited by no instruction here": ((start(), PRODUCT), [(1, 0)]),
    "three share a link, one product": (
        (*ALL[:3], PRODUCT, *ALL[3:]),
        [(1, 0), (0, 1), (0, 1)],
    ),
    "three share a link, two products": (
        (*ALL[:3], PRODUCT, PRODUCT, *ALL[3:]),
        [(2, 0), (1, 0), (0, 1)],
    ),
    "the second starts when the link is free": (
        (start(0), PRODUCT, start(1), PRODUCT, done(0), done(1)),
        [(2, 0), (1, 0)],
    ),
    "two seconds of one, of which the other has the last": (
        (start(0), start(1), PRODUCT, done(0, entries=128), HALF, done(1)),
        [(1, 1), (0.5, 0.5)],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_sums_are_hidden_by_what_runs_while_their_link_sends(name):
    lines, expected = SCHEDULES[name]
    result = collectives(*lines)
    assert [(c.beside_seconds, c.waiting_seconds) for c in result] == expected
    assert [c.hidden for c in result] == [waiting == 0 for _, waiting in expected]
    assert all(c.asynchronous == (name != "synchronous") for c in result)


def transfer(keys):
    """A send and a receive, and two products before these have ended."""
    return (
        "%t = token[] after-all()",
        f"%s = (f32[64]{{0}}, u32[], token[]) send(%x, %t), channel_id=2, {keys}",
        PRODUCT,
        f"%r = (f32[64]{{0}}, u32[], token[]) recv(%t), channel_id=1, {keys}",
        PRODUCT,
        "%sd = token[] send-done(%s), channel_id=2",
        "%rd = (f32[64]{0}, token[]) recv-done(%r), channel_id=1",
    )


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
    # it runs from the send on, beside both products
    assert only(collectives(*transfer(keys), speed=speed)) == ONE._replace(
        kind=kind.lower().replace("_", "-"),
        name="s",
        group_size=slices,
        between_slices=True,
        beside_seconds=2.0,
        bandwidth=200.0,
    )
    one = only(collectives(*transfer(keys), speed=speed))
    assert (one.sent_bytes, one.hidden) == (sent, sent <= 2 * 200)


def test_a_recv_of_a_host_s_callback_is_no_collective():
    keys = 'frontend_attributes={_xla_host_transfer_handler_name="callback"}'
    assert collectives(*transfer(keys)) == []


def test_a_wrapped_collective_is_found_in_what_is_started():
    wrapped = """
        %p = f32[64]{0} parameter(0)
        ROOT %cut = f32[16]{0} reduce-scatter(%p), replica_groups=[1,4]<=[4]
    """
    lines = (
        "%go.0 = ((f32[64]), f32[16]{0}, u32[]) async-start(%x), calls=%wrapped",
        "%on = ((f32[64]), f32[16]{0}, u32[]) async-update(%go.0)",
        PRODUCT,
        "%came = f32[16]{0} async-done(%on)",
    )
    # the input is larger than the result
    expected = ONE._replace(kind="reduce-scatter", group_size=4)
    assert only(collectives(*lines, wrapped=wrapped)) == expected


HELD = """
    %p = f32[64]{0} parameter(0)
    %a = f32[8,32]{1,0} parameter(1)
    %b = f32[32,16]{1,0} parameter(2)
"""
SUM = "%r = f32[64]{0} all-reduce(%p), replica_groups={{0,1}}"


@pytest.mark.parametrize(
    "product, kept, kind",
    [
        (PRODUCT, "", "all-reduce"),
        ("", "", "all-reduce"),
        ("", "ROOT %n = f32[64]{0} negate(%r)", "all-reduce"),
        # a device keeps its part of the sum; libtpu writes it like this
        ("", "ROOT %part = f32[32]{0} dynamic-slice(%r, %i)", "reduce-scatter"),
    ],
)
def test_one_fusion_hides_a_sum_only_if_it_holds_a_product(product, kept, kind):
    fusion = "%f = f32[64] fusion(%x, %a, %b), calls=%fused"
    one = only(collectives(fusion, fused=f"{HELD}\n{SUM}\n{product}\n{kept}"))
    expected = 1.0 if product else 0.0
    assert (one.beside_seconds, one.asynchronous) == (expected, bool(product))
    assert (one.kind, one.name) == (kind, "f")


def test_what_is_waited_for_a_fused_sum_is_time_for_another():
    """The fused sum sends for two seconds, beside a product of one second."""
    larger = f"{HELD}\n{SUM}\n{PRODUCT}".replace("f32[64]", "f32[128]")
    fusion = "%f = f32[128] fusion(%x, %a, %b), calls=%fused"
    result = collectives(start(), fusion, HALF, done(), fused=larger)
    assert [c.beside_seconds for c in result] == [1.0 + 1.0 + 0.5, 1.0]


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
    line = f"%y = f32[64]{{0}} all-reduce(%x), replica_groups={groups}, to_apply=%sum"
    assert only(collectives(line)).group_size == size


AXES = "groups", "members"
BOTH = P(AXES)
RING = [(i, (i + 1) % 4) for i in range(4)]
WHOLE = 4 * 4 * 4 * 6  # the bytes that four devices hold
PRIMITIVES = {  # kind, devices, bytes of what one holds or gets, function of its part
    "sum": ("all-reduce", 4, WHOLE // 4, lambda x: jax.lax.psum(x, AXES)),
    "sums are merged": (
        *("all-reduce", 4, WHOLE // 4 + 4),
        lambda x: sum(jax.lax.psum((x, x[0, 0]), AXES)),
    ),
    "sum over one axis": (
        *("all-reduce", 2, WHOLE // 4),
        lambda x: jax.lax.psum(x, "members"),
    ),
    "gather": ("all-gather", 4, WHOLE, lambda x: jax.lax.all_gather(x, AXES)),
    "scatter": (
        *("reduce-scatter", 4, WHOLE // 4),
        lambda x: jax.lax.psum_scatter(x, AXES),
    ),
    "transpose": (
        *("all-to-all", 4, WHOLE // 4),
        lambda x: jax.lax.all_to_all(x, AXES, 0, 0),
    ),
    "shift": (
        *("collective-permute", 4, WHOLE // 4),
        lambda x: jax.lax.ppermute(x, AXES, RING),
    ),
}


def on_four(function, in_specs, out_specs):
    mesh = jax.make_mesh((2, 2), AXES, axis_types=2 * (AxisType.Auto,))
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@pytest.mark.parametrize("name", PRIMITIVES)
def test_what_xla_makes_of_a_primitive_is_found_with_its_bytes(name):
    kind, devices, num_bytes, function = PRIMITIVES[name]
    module, _ = compiled(on_four(function, BOTH, BOTH), (16, 6))
    one = only(exchanges.collectives(module, SPEED))
    assert (one.kind, one.group_size, one.num_bytes) == (kind, devices, num_bytes)
    assert (one.dtype, one.asynchronous, one.times) == ("f32", False, 1)


def test_a_scan_repeats_its_sums():
    def steps(x):
        def body(x, _):
            return jax.lax.psum(x @ x, AXES), None

        return jax.lax.scan(body, x, length=5)[0]

    module, _ = compiled(on_four(steps, P(), P()), (16, 16))
    assert only(exchanges.collectives(module, SPEED)).times == 5
    assert work.flops(module) == pytest.approx(5 * 2 * 16**3, rel=0.01)
