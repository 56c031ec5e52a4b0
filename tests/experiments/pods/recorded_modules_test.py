"""Three compiled modules, whose times were counted by hand.

`recorded/record.py` says how they were made. A count goes down the schedule, the lines
of the entry computation, and writes down what each of them takes.
"""

from pathlib import Path

import pytest

from experiments.pods import chips, compile_pod, exchanges, hlo, work

US = 1e-6
TOPOLOGIES = {
    "tpu_slice": "v5e:2x2",
    "two_slices": "2*v5e:2x2",
    "gpu": "h100:1x1x8",
}
LEAF = 2 * 2048**2  # bytes of a weight or of a gradient, in bfloat16

# A v5e makes 1.5e9 cycles a second. A device at a corner sends 100e9 bytes/s within its
# slice, 50e9 to one neighbor, and 3.125e9 to other slices. What a line of the schedule
# takes, in cycles, is what the compiler printed:
CYCLE = 1 / 1.5e9
STEP = 1.17 * US  # of a loop over tiles

# tpu_slice
#   async-collective-start     0         the sum sets out, and goes through the fusions
#   collective-permute-start   0         the shift sets out
#   reduce_scatter.7           0         waits for itself
#   fusion.13            874,368         the loss: carries the sum, in 256 steps; alone
#                                        it would have an eighth of them
#   fusion.14            139,100         a product, carries it
#   fusion.19            140,166         a product, carries it
#   collective-permute-done, async-collective-done
#   subtract_bitcast_fusion 96,740
CARRYING = (256 - 256 / 8) * STEP
LOSS = 874_368 * CYCLE - CARRYING
PRODUCTS = (139_100 + 140_166) * CYCLE
SCATTER = 3 / 4 * LEAF / 4 / 100e9  # of a quarter of a leaf, four devices
SLICE = [  # kind, sending, beside, exposed, hidden
    (
        *("all-reduce", 2 * 3 / 4 * LEAF / 100e9, LOSS + PRODUCTS),
        *(CARRYING, 0.0),  # it sends for 126 us, and costs 262
    ),
    (
        *("collective-permute", LEAF / 4 / 50e9),
        *(SCATTER + LOSS + CARRYING + PRODUCTS, 0.0, LEAF / 4 / 50e9),
    ),
    ("reduce-scatter", SCATTER, 0.0, SCATTER, 0.0),
]

# two_slices
#   send                       0         a share, a quarter of a leaf, sets out
#   send.1                     0         a number, in 512 bytes: after the share
#   fusion.5           1,077,088         a product
#   fusion.1           1,081,100         a product
#   recv-done, recv-done.1
#   async-collective-start     0         the gather sets out
#   fusion                     0         a sum of 2,112 rows, of which a device keeps
#                                        528: waits for itself
#   slice.1                3,087
#   collective-permute-start,
#   collective-permute-done    0         48 rows: nothing beside them
#   fusion.11             19,641         carries the gather, in one step
#   async-collective-done
#   subtract_bitcast_fusion 96,740
BETWEEN = 2 * 1 / 2 * LEAF / 4 / 3.125e9
NUMBER = 2 * 1 / 2 * 512 / 3.125e9
GATHER = 3 / 4 * LEAF / 100e9
PADDED = 3 / 4 * LEAF * 2112 / 2048 / 100e9
SHIFT = 2 * 48 * 2048 / 50e9
BOTH = (1_077_088 + 1_081_100) * CYCLE
TWO_SLICES = [
    ("all-reduce", BETWEEN, BOTH, 0.0, BETWEEN),
    ("all-reduce", NUMBER, BOTH - BETWEEN, 0.0, NUMBER),
    (
        *("all-gather", GATHER, 19_641 * CYCLE),
        *(GATHER - 19_641 * CYCLE, 19_641 * CYCLE),
    ),
    ("reduce-scatter", PADDED, 0.0, PADDED, 0.0),
    ("collective-permute", SHIFT, 0.0, SHIFT, 0.0),
]

# gpu: an H100 makes 989.5e12 FLOPs and moves 3.35e12 bytes a second; 450e9 over NVLink
#   copy.8                     reads and writes a leaf
#   custom-call.2              2 x 8192 x 2048 x 2048 FLOPs; moves 9 leaves: 4 + 1 + 4
#   all-reduce-start           the late sum sets out
#   loop_convert_fusion        tanh: reads and writes 4 leaves
#   custom-call.3              as many FLOPs, and leaves, as the other
#   all-reduce-done
#   all-reduce-start.1         the fresh sum sets out
#   wrapped_subtract           moves 3 leaves
#   all-reduce-done.1
PRODUCT = 2 * 8192 * 2048**2 / 989.5e12  # longer than its 9 MOVED
MOVED = LEAF / 3.35e12
SUM = 2 * 7 / 8 * LEAF / 450e9
GPU = [
    ("all-reduce", SUM, 8 * MOVED + PRODUCT, 0.0, SUM),
    ("all-reduce", SUM, 3 * MOVED, SUM - 3 * MOVED, 3 * MOVED),
]

COUNTED = {
    "tpu_slice": (LOSS + PRODUCTS + 96_740 * CYCLE, SLICE),
    "two_slices": (BOTH + (3_087 + 19_641 + 96_740) * CYCLE, TWO_SLICES),
    "gpu": (2 * PRODUCT + (2 + 8 + 3) * MOVED, GPU),
}


def read(name):
    path = Path(__file__).parent / "recorded" / f"{name}.hlo"
    return hlo.parse(path.read_text()), chips.topology(TOPOLOGIES[name]).speed


@pytest.mark.parametrize("name", COUNTED)
def test_hidden_and_exposed_times_are_those_counted_by_hand(name):
    module, speed = read(name)
    computation, rows = COUNTED[name]
    assert work.seconds(module, speed) == pytest.approx(computation)
    result = exchanges.collectives(module, speed)
    assert [c.kind for c in result] == [kind for kind, *_ in rows]
    for collective, (_, sending, beside, exposed, hidden) in zip(
        result, rows, strict=True
    ):
        assert collective.sending_seconds == pytest.approx(sending)
        assert collective.beside_seconds == pytest.approx(beside)
        assert collective.waiting_seconds == pytest.approx(exposed)
        assert collective.hidden_seconds == pytest.approx(hidden)


@pytest.mark.parametrize("name", COUNTED)
def test_a_report_of_a_recorded_module_is_a_table(name):
    """Also where a collective has nothing beside it, or no bandwidth is known."""
    module, speed = read(name)
    for known in (speed, speed._replace(network=0.0, link=0.0)):
        report = compile_pod.Report(
            *(name, TOPOLOGIES[name], module.devices, 1, 1.0, 1, 0, 0, 0, 0),
            flops=work.flops(module),
            bytes_accessed=0.0,
            seconds=work.seconds(module, known),
            collectives=tuple(exchanges.collectives(module, known)),
        )
        assert "bytes" in compile_pod.table(report)
