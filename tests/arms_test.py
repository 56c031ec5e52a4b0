"""How an arm is written, and what is said of one that cannot be read."""

import math

import pytest

from configs import default
from experiments import arms


def test_an_arm_is_a_protocol_and_what_it_changes():
    arm = arms.parse(
        "mindflayer((1, 2), inf, limit=-0.5)   workers=2  serial=True "
        "service=markov_stragglers(gamma(1.0, 2), 4.0, 0.1, 0.3) speeds=sqrt"
    )
    assert arm.protocol == ("mindflayer", ((1, 2), math.inf), {"limit": -0.5})
    assert arm.changes == {
        "workers": 2,
        "serial": True,
        "service": "markov_stragglers(gamma(1.0, 2), 4.0, 0.1, 0.3)",
        "speeds": "sqrt",
    }
    assert "  " not in arm.name and arms.parse(arm.name) == arm


def test_a_law_may_stand_among_the_arguments_of_another():
    call = arms.parse_call("markov_stragglers(gamma(1.0, shape=2), 4.0)")
    assert call.arguments == (("gamma", (1.0,), {"shape": 2}), 4.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' must be NAME"),
        ("hardsync", "'hardsync' must be NAME"),
        ("k_sync(", r"'k_sync\(' must be NAME"),
        ("k_sync(two)", r"'k_sync\(two\)' must be NAME"),
        ("k_sync(1 + 1j * 2)", "must be NAME"),
        ("8", "'8' must be NAME"),
        ("k_sync(2) workers", "'workers' must be KEY=VALUE"),
        ("k_sync(2) workers=4 workers=8", "'workers=8' must be KEY=VALUE, each KEY on"),
        ("k_sync(2) batch size=4", "'batch' must be KEY=VALUE"),
    ],
)
def test_what_is_no_arm_says_what_one_is(text, message):
    with pytest.raises(ValueError, match=message):
        arms.parse(text)


def test_the_arms_of_a_config_are_their_names_or_the_log():
    config = default.get_config()
    assert arms.names(config) == []
    config.cluster.arms = ("hardsync()   workers=4", "k_async(1)")
    assert arms.names(config) == ["hardsync() workers=4", "k_async(1)"]
    config.cluster.arms = ("hardsync",)
    with pytest.raises(ValueError, match=r"config\.cluster\.arms: 'hardsync'"):
        arms.names(config)
    config.trace = "log.csv"
    assert arms.names(config) == ["trace"]


def test_an_arm_is_found_by_name_beginning_or_number():
    names = ["k_async(1)", "k_async(1) workers=4", "k_sync(2)", "0th()"]
    assert arms.find("k_async(1)", names) == names[0]  # though another begins so
    assert arms.find("k_s", names) == names[2]
    assert arms.find("1", names) == names[1]
    with pytest.raises(ValueError, match=r"arm=k_ names several.* k_sync\(2\)"):
        arms.find("k_", names)
    with pytest.raises(ValueError, match="arm=9 names none of the run's arms: k_async"):
        arms.find("9", names)
    with pytest.raises(ValueError, match="it has none"):
        arms.find("k", [])


def test_a_slug_is_a_file_name_that_splits_nowhere():
    for name in ("psp(2, 4) service=pareto(2.0, 1.0)", "ssp(-1) speeds=sqrt"):
        assert not set(arms.slug(name)) & set("-/ ()'\"")
