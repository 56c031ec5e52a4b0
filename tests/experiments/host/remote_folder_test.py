"""A folder in a bucket, which is a file system in memory here."""

import json
import sys
from typing import ClassVar

import fsspec
import jax
import optax
import pandas as pd
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from experiments import Experiment, run, tasks
from experiments.host import processes
from experiments.host.folder import RunFolder

pytestmark = pytest.mark.runs


class Bucket(MemoryFileSystem):
    """The file system of gs:// here; a file that is opened for writing is replaced."""

    protocol = ("gcs",)
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    written: ClassVar = []

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("gs:/"))

    def _open(self, path, mode="rb", **options):
        if "r" not in mode:
            assert mode == "wb", "an object cannot be appended to"
            self.written.append(path)
        return super()._open(path, mode, **options)


@pytest.fixture
def bucket(monkeypatch):
    Bucket.store.clear()
    Bucket.written.clear()
    Bucket.pseudo_dirs[:] = [""]  # a bucket has no empty folders
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    return epath.Path("gs://bucket")


def test_a_local_folder_is_itself_and_nothing_is_copied(tmp_path):
    folder = RunFolder(str(tmp_path / "run"))
    folder.download()
    folder.upload()
    assert folder.path == tmp_path / "run"
    assert folder.checkpoints == epath.Path(tmp_path / "run" / "checkpoints")
    assert not list(tmp_path.iterdir())


def test_records_end_up_in_the_bucket_and_the_next_command_finds_them(bucket):
    first = RunFolder("gs://bucket/run")
    first.download()
    with (first.path / "metrics.jsonl").open("a") as file:
        file.write("1\n")
        file.flush()
        first.upload()
        file.write("2\n")
    (first.path / "traces").mkdir()
    (first.path / "traces" / "a.npz").write_bytes(b"\0\1")
    (first.path / "figures").mkdir()
    (first.path / "figures" / "a.png").write_bytes(b"png")
    first.upload()
    folder = bucket / "run"
    assert (folder / "metrics.jsonl").read_text() == "1\n2\n"
    assert (folder / "figures" / "a.png").read_bytes() == b"png"
    second = RunFolder("gs://bucket/run")
    second.download()
    assert (second.path / "metrics.jsonl").read_text() == "1\n2\n"
    assert (second.path / "traces" / "a.npz").read_bytes() == b"\0\1"
    assert second.checkpoints == folder / "checkpoints"


def test_a_run_in_a_bucket_goes_on_from_it_and_is_read_from_it(
    bucket, tmp_path, monkeypatch, caplog
):
    """Orbax writes to a bucket itself; here the checkpoints are in a folder."""

    class There(RunFolder):
        def __init__(self, path):
            super().__init__(path)
            self.checkpoints = epath.Path(tmp_path / "checkpoints")

    monkeypatch.setattr(sys.modules["experiments.run"], "RunFolder", There)
    caplog.set_level("INFO", logger="experiments")
    for question, updates in (("First?", 10), ("More?", 20), ("Again?", 20)):
        asked = Experiment(
            question=question,
            task=tasks.quadratic((0.5, 2.0), noise=0.1),
            training=optax.sgd,
            grid={"learning_rate": (0.1,)},
            seeds=2,
            updates=updates,
            evaluate_every=5,
        )
        result = run(asked, "gs://bucket/run", keep_checkpoints=updates == 10)
    assert "resumes at update 10" in caplog.text
    assert "the run is finished: its records are read" in caplog.text
    expected = run(asked, tmp_path / "local")
    pd.testing.assert_frame_equal(result.results, expected.results, rtol=0)
    pd.testing.assert_frame_equal(result.curves, expected.curves, rtol=0)
    info = json.loads((bucket / "run" / "run.json").read_text())
    assert info["question"] == "Again?" and info["wall_seconds"] > 0
    rows = (bucket / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 5, 10, 15, 20]


def test_only_what_has_changed_is_uploaded(bucket):
    folder = RunFolder("gs://bucket/run")
    folder.download()
    (folder.path / "run.json").write_text("{}")
    (folder.path / "metrics.jsonl").write_text("1\n")
    folder.upload()
    Bucket.written.clear()
    folder.upload()
    assert not Bucket.written
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write("2\n")
    folder.upload()
    assert [path.rpartition("/")[2] for path in Bucket.written] == ["metrics.jsonl"]


def test_a_storage_that_nobody_knows_is_refused_with_the_remedy(monkeypatch):
    def unknown(*arguments, **keywords):
        raise ImportError("no s3fs")

    monkeypatch.setattr(fsspec, "filesystem", unknown)
    with pytest.raises(ValueError, match=r"s3://bucket/run.*no s3fs.*pip install gcs"):
        RunFolder("s3://bucket/run").download()


@pytest.fixture
def of_two(monkeypatch):
    """Makes this process one of two: its number, and the answers of the other one."""

    def begin(number, other_misses=False):
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr(processes, "is_first", lambda: number == 0)
        monkeypatch.setattr(processes, "of_all", lambda text: ["nonce", "nonce"])
        others = iter([False, other_misses])  # whether it failed, what it misses
        monkeypatch.setattr(
            processes, "_of_each", lambda flag: [[flag], [next(others)]]
        )

    return begin


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_shared_folder_is_checked_and_left_as_it_was(tmp_path, bucket, of_two, place):
    path = tmp_path / "run" if place == "folder" else bucket / "run"
    of_two(0)
    RunFolder(str(path)).check_shared()
    assert not (path / ".nonce").exists()


def test_a_folder_that_another_process_does_not_reach_is_refused(tmp_path, of_two):
    of_two(0, other_misses=True)
    with pytest.raises(ValueError, match=f"--workdir={tmp_path} must be one folder"):
        RunFolder(str(tmp_path)).check_shared()
    assert not list(tmp_path.iterdir())


def test_what_process_0_did_not_write_here_is_not_shared(tmp_path, of_two):
    of_two(1)
    with pytest.raises(ValueError, match="must be one folder that all hosts reach"):
        RunFolder(str(tmp_path)).check_shared()


def test_a_folder_that_cannot_be_written_is_refused_by_all(tmp_path, of_two):
    (tmp_path / "file").write_text("")
    of_two(0)
    with pytest.raises(OSError, match=f"Not a directory.*{tmp_path / 'file'}"):
        RunFolder(str(tmp_path / "file" / "run")).check_shared()
