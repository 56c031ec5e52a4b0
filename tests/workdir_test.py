"""A folder in a bucket, which is here a file system in memory that fsspec has."""

from typing import ClassVar

import fsspec
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from experiments.host.workdir import Workdir


class Bucket(MemoryFileSystem):
    """What gs:// names here. As there, what is opened for writing begins anew."""

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
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    return epath.Path("gs://bucket")


def test_a_local_folder_is_itself_and_nothing_is_copied(tmp_path):
    workdir = Workdir(str(tmp_path / "run"))
    workdir.download()
    workdir.upload()
    assert workdir.local == tmp_path / "run"
    assert workdir.checkpoints == epath.Path(tmp_path / "run" / "checkpoints")
    assert not list(tmp_path.iterdir())
    assert workdir.shown(workdir.local) == str(tmp_path / "run")


def test_records_end_up_in_the_bucket_and_the_next_command_finds_them(bucket):
    first = Workdir("gs://bucket/run")
    first.download()
    with (first.local / "metrics.jsonl").open("a") as file:
        file.write("1\n")
        file.flush()
        first.upload()
        file.write("2\n")
    (first.local / "traces").mkdir()
    (first.local / "traces" / "a.npz").write_bytes(b"\0\1")
    (first.local / "figures").mkdir()
    (first.local / "figures" / "a.png").write_bytes(b"png")
    first.upload()
    there = bucket / "run"
    assert (there / "metrics.jsonl").read_text() == "1\n2\n"
    assert (there / "figures" / "a.png").read_bytes() == b"png"
    again = Workdir("gs://bucket/run")
    again.download()
    assert (again.local / "metrics.jsonl").read_text() == "1\n2\n"
    assert (again.local / "traces" / "a.npz").read_bytes() == b"\0\1"
    assert again.checkpoints == there / "checkpoints"


def test_only_what_has_changed_is_uploaded(bucket):
    workdir = Workdir("gs://bucket/run")
    workdir.download()
    (workdir.local / "run.json").write_text("{}")
    (workdir.local / "metrics.jsonl").write_text("1\n")
    workdir.upload()
    Bucket.written.clear()
    workdir.upload()
    assert not Bucket.written
    with (workdir.local / "metrics.jsonl").open("a") as file:
        file.write("2\n")
    workdir.upload()
    assert [path.rpartition("/")[2] for path in Bucket.written] == ["metrics.jsonl"]


def test_what_is_said_names_the_bucket(bucket):
    workdir = Workdir("gs://bucket/run")
    line = f"report: {workdir.local / 'report.html'}"
    assert workdir.shown(line) == "report: gs://bucket/run/report.html"


def test_a_storage_that_nobody_knows_is_refused_with_the_remedy(monkeypatch):
    def unknown(*arguments, **keywords):
        raise ImportError("no s3fs")

    monkeypatch.setattr(fsspec, "filesystem", unknown)
    with pytest.raises(ValueError, match=r"s3://bucket/run.*no s3fs.*pip install gcs"):
        Workdir("s3://bucket/run").download()
