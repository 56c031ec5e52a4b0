"""Short names of arms tell them apart, and every arm has one panel."""

import importlib

import pytest

from experiments import arms
from experiments.figures import names
from experiments.tuning import Series

CONFIGS = [
    ("softsync", "laws"),
    ("softsync", "tradeoff"),
    ("k_async", "exponential"),
    ("grouping", None),
    ("barriers", None),
    ("time_optimal", "sqrt"),
]


def run_of(config, variant):
    make = importlib.import_module(f"configs.{config}").get_config
    return arms.names(make(variant) if variant else make())


def shorts(run):
    return [str(name) for name in names.short(run).values()]


def test_what_all_arms_change_alike_is_left_out():
    run = ["k_sync(1) workers=8", "k_sync(2) workers=8"]
    assert shorts(run) == ["k_sync(1)", "k_sync(2)"]
    assert shorts(["hardsync() workers=8"]) == ["hardsync()"]


def test_what_follows_from_an_earlier_change_is_left_out():
    run = [
        f"hardsync() workers={workers} batch_size={120 // workers}"
        for workers in (4, 8, 30)
    ]
    assert shorts(run) == [f"hardsync() workers={workers}" for workers in (4, 8, 30)]


def test_what_differs_is_kept_even_if_the_protocol_tells_arms_apart():
    run = ["hardsync() workers=4", "k_async(1) workers=8", "ssp(0)"]
    assert shorts(run) == run


def test_changes_that_differ_together_by_half_are_both_kept():
    run = [f"hardsync() workers={p} serial={s}" for p in (4, 8) for s in (True, False)]
    assert shorts(run) == run


def test_an_override_that_one_arm_alone_has_is_kept_there():
    run = ["groups(1) slow_workers=0", "groups(1)", "groups(2)"]
    assert shorts(run) == run


@pytest.mark.parametrize(("config", "variant"), CONFIGS)
def test_short_names_of_a_config_are_distinct(config, variant):
    found = shorts(run_of(config, variant))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(("config", "variant"), CONFIGS)
def test_each_arm_of_a_config_has_one_panel_and_none_is_too_full(config, variant):
    run = run_of(config, variant)
    panels = names.panels(run)
    placed = [name for own in panels.values() for name in own]
    assert sorted(placed) == sorted(run)
    for own in panels.values():
        assert len(own) <= names.MOST
        assert list(own) == sorted(own, key=run.index)  # the config's order
        assert len(set(own.values())) == len(own)


def test_few_arms_share_one_panel():
    run = [f"ssp({bound})" for bound in range(names.MOST)]
    assert names.panels(run) == {"": dict(zip(run, run, strict=True))}


def test_arms_are_grouped_by_what_they_change_first():
    run = [
        f"{protocol} workers={workers}"
        for workers in (8, 32)
        for protocol in ("rennala(8)", "ringleader()", "ssp(1)", "ssp(2)")
    ]
    assert names.panels(run) == {
        f"workers={workers}": {
            name: name.split()[0] for name in run if name.endswith(f"={workers}")
        }
        for workers in (8, 32)
    }


def test_what_cannot_be_grouped_is_dealt_out_in_order():
    run = [f"ssp({bound})" for bound in range(2 * names.MOST + 1)]
    panels = names.panels(run)
    assert [name for own in panels.values() for name in own] == run
    sizes = [len(own) for own in panels.values()]
    assert len(sizes) == 3 and max(sizes) - min(sizes) <= 1


def test_a_panel_for_each_arm_is_none():
    run = [f"hardsync() workers={p}" for p in range(1, names.MOST + 2)]
    panels = names.panels(run)
    assert [len(own) for own in panels.values()] == [4, 3]


def test_one_arm_too_many_makes_a_second_panel():
    run = [f"ssp({bound})" for bound in range(names.MOST + 1)]
    assert len(names.panels(run)) == 2


def test_a_long_name_is_broken_outside_of_brackets():
    name = "ringmaster(16, stop=True) workers=128 batch_size=4"
    assert names.wrapped(name, 26).splitlines() == [
        "ringmaster(16, stop=True)",
        "workers=128 batch_size=4",
    ]
    assert names.wrapped(name, len(name)) == name
    assert names.wrapped(name, 1).split("\n") == arms.split(name)


def test_variants_name_what_is_not_the_arm():
    def series(optimizer, law, arm):
        return Series(optimizer, "trace", law, "after", "none", 0.0, arm)

    one = [series("sgd", law, arm) for law in ("none", "inverse") for arm in "ab"]
    assert list(names.variants(one).values()) == [
        *["plain"] * 2,
        *["inverse after"] * 2,
    ]
    both = [series(name, "none", "a") for name in ("sgd", "adam")]
    assert list(names.variants(both).values()) == ["sgd", "adam"]
