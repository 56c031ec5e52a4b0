"""What the text of a module has: types, calls, how often they run, on which devices."""

import pytest

from experiments.pods import hlo, work
from tests.experiments.pods.written import (
    FLOPS,
    PRODUCT,
    SPEED,
    collectives,
    done,
    module,
    only,
    start,
)


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


@pytest.mark.parametrize(
    "header, devices",
    [("replica_count=3", 3), ("replica_count=3, num_partitions=2", 6), ("entry=x", 1)],
)
def test_the_header_says_how_many_devices_there_are(header, devices):
    assert module(header=header).devices == devices


# operands of the entry: only their types matter
BODY = "\n".join(
    [
        "%x = f32[64]{0} parameter(0)",
        "%a = f32[8,32]{1,0} parameter(1)",
        "%b = f32[32,16]{1,0} parameter(2)",
        *(start(), PRODUCT, done()),
    ]
)
LIMIT = "%n = s32[] constant(5)\n%lt = pred[] compare(%i, %n), direction=LT"


@pytest.mark.parametrize(
    "config, condition, times",
    [
        ('backend_config={"known_trip_count":{"n":"5"}}', LIMIT, 5),
        ("", LIMIT, 5),  # as TPUs print the loop
        ("", LIMIT.replace("LT", "GT"), 1),
        ("", "%go = pred[] get-tuple-element(%t), index=1", 1),  # unknown condition
    ],
)
def test_what_is_in_a_loop_counts_as_often_as_it_runs(config, condition, times):
    line = f"%w = (f32[]) while(%t), condition=%limit, body=%body, {config}"
    computations = {"body": BODY, "limit": condition}
    one = only(collectives(line, **computations))
    assert (one.times, one.beside_seconds, one.hidden) == (times, 1.0, True)
    loop = module(line, **computations)
    assert work.flops(loop) == times * FLOPS
    assert work.seconds(loop, SPEED) == times


def test_calls_and_branches_are_looked_into():
    lines = (
        "%w = f32[] call(%t), to_apply=%body",
        "%v = f32[] conditional(%i, %t, %t), branch_computations={%body, %idle}",
        "%u = f32[] conditional(%i, %t, %t), true_computation=%idle,"
        " false_computation=%body",
    )
    idle = "ROOT %p = f32[] parameter(0)"
    assert len(collectives(*lines, body=BODY, idle=idle)) == 3
    # a conditional runs one of its branches
    assert work.flops(module(*lines, body=BODY, idle=idle)) == 3 * FLOPS
    # the branch that sends more is listed, whether it is the first or the second
    other = BODY.replace("f32[64]", "f32[65]")
    result = collectives(*lines, body=BODY, idle=other)
    assert [c.num_bytes for c in result] == [256, 260, 260]
    assert [c.in_branch for c in result] == [False, True, True]
