"""A run's folder takes its own run back, and refuses others."""

import json
import pwd
from types import SimpleNamespace

import numpy as np
import pytest

import delayjax as dj
from experiments.host.folder import RunFolder

RECORD = {
    "question": "Why?",
    "notes": "So.",
    "config": {"rate": 1},
    "changed": {"rate": [2, 1]},
    "seeds": [5, 6],
    "tuning_seeds": [],
    "programs": [
        {
            "name": "all",
            "cells": [{"rate": 0.01}, {"rate": 0.03}],
            "updates": 10,
            "digest": {},
            "facts": {"sharpness": 1.0},
            "batch": None,
        }
    ],
}


def begun(path, traces=None):
    folder = RunFolder(path)
    with folder.locked():
        folder.check_same(RECORD, {"all": lambda updates: {}})
        folder.begin(RECORD, traces or {})
    return folder


def test_a_folder_takes_its_own_run_back_and_adds_up_its_time(tmp_path):
    for seconds in (2.0, 3.0):
        begun(tmp_path / "new").spent(seconds)
    record = json.loads((tmp_path / "new" / "run.json").read_text())
    assert record["wall_seconds"] == 5.0
    assert {"python", "jax", "optax", "delayjax"} <= record["versions"].keys()
    assert record.items() >= RECORD.items()


def test_a_config_may_have_further_seeds_and_trainings_in_the_same_run(tmp_path):
    folder = begun(tmp_path)
    digests = {"all": lambda updates: {}}
    for key, refused in {"seeds": False, "most": False, "rate": True}.items():
        other = RECORD | {"config": RECORD["config"] | {key: 3}}
        if refused:
            with pytest.raises(ValueError, match=rf"config\.{key} \(it was 1\)"):
                folder.check_same(other, digests)
        else:
            folder.check_same(other, digests)


@pytest.mark.parametrize("text", ['{"config"', '{"name": "npm"}', "[]", "3"])
def test_a_record_that_no_run_wrote_is_refused(text, tmp_path):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ValueError, match=r"run\.json cannot be read"):
        begun(tmp_path)


def test_an_unwritable_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match=r"--workdir=.*file/run cannot be written"),
        RunFolder(tmp_path / "file" / "run").locked(),
    ):
        pass


@pytest.mark.parametrize("place", ["~", "~/run", "~nobody", "~nobody/run"])
def test_a_home_that_does_not_exist_is_refused_and_not_made(
    place, tmp_path, monkeypatch
):
    home = tmp_path / "none"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=str(home)))
    message = f"--workdir={place}: there is no folder {home}: give another"
    with (
        pytest.raises(ValueError, match=message),
        RunFolder(place).locked(),
    ):
        pass
    assert not home.exists()


def test_the_first_seed_s_trace_is_kept_as_far_as_the_run_goes(tmp_path):
    def followed(service, updates):
        cluster = dj.cluster.Cluster(2, dj.cluster.exponential(service))
        protocol = dj.cluster.protocols.k_async(1)
        trace = dj.cluster.simulate(cluster, protocol, updates, seed=0)
        begun(tmp_path, {"all": ({"law": "none"}, trace)})
        return trace

    for updates in (8, 12, 12):
        trace = followed(1.0, updates)
        (path,) = (tmp_path / "traces").iterdir()
        kept = dj.cluster.load_trace(path)
        np.testing.assert_array_equal(kept.seconds, trace.seconds)
    assert kept.num_updates == 12
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["traces"] == [{"file": "traces/all.npz", "labels": {"law": "none"}}]


def test_a_run_that_is_killed_as_it_writes_its_first_traces_is_taken_back(
    tmp_path, monkeypatch
):
    cluster = dj.cluster.Cluster(2, dj.cluster.exponential(1.0))
    trace = dj.cluster.simulate(cluster, dj.cluster.protocols.k_async(1), 8, seed=0)
    traces = {"all": ({}, trace)}
    with monkeypatch.context() as patch:
        patch.setattr(dj.cluster.Trace, "save", lambda *of: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            begun(tmp_path, traces)
    assert (tmp_path / "traces").exists()
    begun(tmp_path, traces)
    assert dj.cluster.load_trace(tmp_path / "traces" / "all.npz").num_updates == 8
