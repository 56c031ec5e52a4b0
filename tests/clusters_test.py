"""Protocols, laws and clusters by name are those by hand, and bad ones say why."""

import importlib
import inspect

import numpy as np
import pytest

import delayjax as dj
from configs import default
from experiments import arms, build
from experiments.build import clusters


def arm_config(name, **changes):
    """The default as the arm changes it."""
    config = default.get_config()
    config.cluster.arms = (name,)
    config.update_from_flattened_dict(changes)
    return build.for_arm(config, name)


def course(name, **changes):
    return build.course(arm_config(name, **changes), name)


def seed_of(config, seed):
    mixed = np.random.SeedSequence([config.cluster_seed, seed]).generate_state(1)
    return int(mixed[0])


def test_every_protocol_of_the_library_has_its_name():
    protocols = {
        name
        for name, value in vars(dj.cluster.protocols).items()
        if inspect.isfunction(value)
    }
    assert set(clusters.PROTOCOLS) == protocols


def test_an_arm_is_its_protocol_on_its_cluster():
    name = (
        "bounded_staleness(6, late='wait') workers=5 service=gamma(2.0, shape=3)"
        " speeds=linear slow_workers=2 slow_factor=4 latency_seconds=0.25"
        " message_bytes=3.0 bytes_per_second=2.0 serial=True"
    )
    config = arm_config(name, seeds=(4, 7), steps=60, cluster_seed=11)
    found = build.course(config, name)
    factors = [i * (4 if i > 3 else 1) for i in (1, 2, 3, 4, 5)]
    cluster = dj.cluster.Cluster(
        5,
        dj.cluster.gamma(2.0, 3),
        slowdown=factors,
        communication=dj.cluster.Communication(0.25, 3.0, 2.0, serial=True),
    )
    rule = dj.cluster.protocols.bounded_staleness(6, late="wait")
    for seed, trace in zip((4, 7), found.traces, strict=True):
        expected = dj.cluster.simulate(cluster, rule, 60, seed=seed_of(config, seed))
        np.testing.assert_array_equal(trace.seconds, expected.seconds)
        np.testing.assert_array_equal(trace.read_version, expected.read_version)


@pytest.mark.parametrize(
    ("speeds", "law"),
    [("equal", lambda i: 1.0), ("linear", lambda i: i), ("sqrt", lambda i: i**0.5)],
)
def test_speeds_are_laws_of_the_worker(speeds, law):
    config = arm_config("k_async(1)", **{"cluster.speeds": speeds})
    assert list(build.cluster(config).slowdown) == [law(i) for i in range(1, 9)]


def test_no_rate_is_an_infinitely_fast_link():
    config = arm_config("k_async(1)", **{"cluster.message_bytes": 5.0})
    assert build.cluster(config).communication.transfer_seconds == 0.0


def test_laws_may_be_made_of_laws():
    config = arm_config(
        "hardsync() service=markov_stragglers(constant(2.0), 3.0, 0.5, 0.5)"
    )
    (block,) = (
        {
            value
            for value in next(iter(draws(build.cluster(config).service_of(0)))).tolist()
        }
        - {2.0},
    )
    assert block == {6.0}


def draws(law):
    return law(np.random.default_rng(0), 0)


def test_an_arm_changes_its_own_config_alone():
    config = default.get_config()
    own = build.for_arm(config, "hardsync() workers=3 batch_size=5 slow_factor=2")
    assert (own.cluster.workers, own.task.batch_size) == (3, 5)
    assert own.cluster.slow_factor == 2.0
    assert (config.cluster.workers, config.task.batch_size) == (8, 32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "k_sink(2)",
            r"no protocol or method 'k_sink'. There are hardsync, n_softsync, k_sync",
        ),
        ("k_sync()", r"arms: 'k_sync\(\)': .*missing 1 required positional.*'k'"),
        ("k_sync(0)", r"arms: 'k_sync\(0\)': `k` must be at least 1"),
        ("k_sync(9)", r"arms: 'k_sync\(9\)': `k` must lie in 1 .. 8, got 9"),
        ("k_sync(2) lr=0.1", "changes 'lr', but an arm can change bytes_per_"),
        ("k_sync(2) arms=()", "changes 'arms', but an arm can"),
        ("k_sync(2) workers=many", "workers must be int, got 'many'"),
        ("k_sync(2) service=normal(1.0)", r"service: 'normal\(1.0\)': there is no law"),
        ("k_sync(2) service=1.0", "service must be str, got 1.0"),
        ("k_sync(2) service=gamma", "service: 'gamma' must be NAME"),
        ("k_sync(2) service=gamma(1.0)", r"'gamma\(1.0\)': .*missing 1 required"),
        ("k_sync(2) service=gamma(-1.0, 2.0)", "`mean_seconds` must be .*-1.0"),
        ("k_sync(2) latency_seconds=-1.0", "config.cluster: `latency_seconds` must be"),
        ("k_sync(2) slow_workers=1 slow_factor=0.0", "config.cluster: `slowdown` must"),
        (
            "hardsync() service=infinite_bernoulli(1.0, 0.5)",
            "waits for ever",
        ),
        ("hardsync() seconds=0.001 service=constant(1.0)", "no update is done within"),
        ("hardsync() examples=5 batch_size=0", "examples counts batches, and config"),
    ],
)
def test_what_cannot_be_made_says_why(name, message):
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        course(name)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith("config.cluster")


@pytest.mark.parametrize(
    "name",
    [
        *("softsync", "softsync:tradeoff", "k_async", "k_async:shifted"),
        *("k_async:pareto", "grouping", "barriers", "time_optimal"),
        *("time_optimal:linear", "workers", "workers:spectrum"),
    ],
)
def test_the_arms_of_a_shipped_config_can_be_simulated(name):
    name, *argument = name.split(":")
    config = importlib.import_module(f"configs.{name}").get_config(*argument)
    config.seeds = (0,)
    for arm in arms.names(config):
        own = build.for_arm(config, arm)
        found = build.course(own, arm)
        assert found.steps >= 20
        # all of the budget is used, but less than a chunk
        examples = found.examples(found.steps)[0] / (own.cluster.examples or np.inf)
        seconds = found.seconds(found.steps)[0] / (own.cluster.seconds or np.inf)
        assert 0.85 < max(examples, seconds) <= 1.0


def test_a_logged_trace_is_the_only_arm(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "update,time_s,worker,read_version\n0,1.0,0,0\n0,1.0,2,0\n1,1.5,1,0\n2,4,0,1\n"
    )
    config = default.get_config()
    config.trace, config.seeds = str(path), (0, 1)
    found = build.course(config, "trace")
    assert found.steps == 3 and found.workers == 3 and found.chunk == 1
    assert len({id(trace) for trace in found.traces}) == 1 and len(found.traces) == 2
    for seconds, steps in ((1.4, 1), (1.5, 2), (99.0, 3)):
        config.cluster.seconds = seconds
        assert build.course(config, "trace").steps == steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config.trace=.*log.csv cannot be read \(No such file"),
        ("update,time_s\n", "config.trace: .*lacks worker, read_version"),
        (
            "update,time_s,worker,read_version\n0,1,0,0\n1,2,0,5\n",
            "line 3: `read_v",
        ),
        ("staleness\n0\n1\n", "config.trace: .*log.csv has no column time_s"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path, text, message):
    if text is not None:
        (tmp_path / "log.csv").write_text(text)
    config = default.get_config()
    config.trace = str(tmp_path / "log.csv")
    with pytest.raises(ValueError, match=message):
        build.course(config, "trace")
