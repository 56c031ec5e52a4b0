"""Laws, protocols and service times go to another process, and are the same there."""

import pickle

import pytest

from delayjax.cluster import protocols
from tests import public_calls
from tests.support.contents import contents

# their argument is a function of a test, which has no name to be pickled by
BY_FUNCTION = {"cluster.by_batch", "cluster.independent"}
MADE = [
    row
    for row in public_calls.ROWS
    if row.use in {public_calls.of_law, public_calls.simulated, public_calls.drawn}
    and row.label not in BY_FUNCTION
]


def made(row):
    return row.function(**{name: value for name, (value, _) in row.arguments.items()})


@pytest.mark.parametrize("row", MADE, ids=lambda row: row.label)
def test_a_copy_from_another_process_does_the_same(row):
    one = made(row)
    copy = pickle.loads(pickle.dumps(one))
    assert contents(row.use(copy)) == contents(row.use(one))
    again = pickle.loads(pickle.dumps(copy))
    assert contents(row.use(again)) == contents(row.use(one))


@pytest.mark.parametrize(
    "make", [protocols.hardsync, protocols.round_robin, protocols.ringleader]
)
def test_a_protocol_without_arguments_has_a_copy(make):
    copy = pickle.loads(pickle.dumps(make()))
    assert repr(copy) == repr(make())
    same = (public_calls.simulated(each) for each in (copy, make()))
    first, second = map(contents, same)
    assert first == second


def test_each_protocol_and_law_is_copied():
    labels = {row.label for row in MADE}
    kinds = {"protocols": protocols, "modulation": public_calls.modulation}
    public = {
        f"{kind}.{name}"
        for kind, module in kinds.items()
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type)
    }
    without = {"protocols.hardsync", "protocols.round_robin", "protocols.ringleader"}
    assert public - labels <= without | {"modulation.inverse"}
