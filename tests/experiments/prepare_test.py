import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from absl import app
from absl.testing import flagsaver

from experiments import prepare


class SmallSet(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = tfds.features.FeaturesDict(
            {
                "image": tfds.features.Tensor(shape=(2, 2, 1), dtype=np.uint8),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
        )
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, downloads):
        return {split: self._generate_examples(n) for split, n in self.sizes.items()}

    def _generate_examples(self, size):
        for number in range(size):
            image = np.full((2, 2, 1), number, np.uint8)
            yield number, {"image": image, "label": number % 3}

    sizes = {"train": 7, "test": 4}  # noqa: RUF012


class UnreachableSet(SmallSet):
    def _split_generators(self, downloads):
        downloads.download("http://127.0.0.1:9/images.zip")  # a port nobody listens on


class ArraysAsPngSet(SmallSet):
    def _info(self):
        features = {"image": tfds.features.Image(shape=(2, 2, 1))}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features)
        )

    def _generate_examples(self, size):
        for number, example in super()._generate_examples(size):
            yield number, {"image": example["image"]}


class HandMadeSet(SmallSet):
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Write to the authors."

    def _split_generators(self, downloads):
        return {"train": self._generate_examples(len(str(downloads.manual_dir)))}


def test_a_data_set_is_written_as_array_record_and_then_left_alone(tmp_path):
    said = prepare.prepare("small_set", str(tmp_path))
    assert "small_set is prepared at" in said
    assert "{'train': 7, 'test': 4}" in said
    files = sorted(file.suffix for file in tmp_path.rglob("*.array_record*"))
    assert len(files) == 2
    builder = tfds.builder_from_directory(tmp_path / "small_set" / "1.0.0")
    labels = [int(row["label"]) for row in builder.as_data_source("train")]
    assert sorted(labels) == sorted(number % 3 for number in range(7))
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert "already prepared" in prepare.prepare("small_set", str(tmp_path))
    assert times == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}


def test_a_data_set_in_another_format_is_refused(tmp_path):
    prepare.prepare("small_set", str(tmp_path))
    info = tmp_path / "small_set" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(
        prepare.PrepareError, match=r"prepared as tfrecord at .*1\.0\.0"
    ):
        prepare.prepare("small_set", str(tmp_path))


def test_without_a_network_it_says_so(tmp_path, monkeypatch):
    from tensorflow_datasets.core.download import downloader

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(downloader, "MAX_RETRIES", 0)  # instead of minutes
    with pytest.raises(prepare.PrepareError, match="could not be downloaded") as error:
        prepare.prepare("unreachable_set", str(tmp_path))
    assert "Run this where there is a network" in str(error.value)


def test_where_tensorflow_is_needed_it_says_how(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # as if it were not installed
    with pytest.raises(prepare.PrepareError) as error:
        prepare.prepare("arrays_as_png_set", str(tmp_path))
    command = f"-m experiments.prepare arrays_as_png_set --data_dir={tmp_path}\n"
    assert "pip install tensorflow-cpu" in str(error.value)
    assert command in str(error.value)
    assert f"data_dir='{tmp_path}'" in str(error.value)


def test_downloads_made_by_hand_are_asked_for(tmp_path):
    with pytest.raises(prepare.PrepareError, match="Write to the authors"):
        prepare.prepare("hand_made_set", str(tmp_path))


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(prepare.PrepareError, match=r"tensorflow_datasets.*\.\[tfds\]"):
        prepare.prepare("small_set")


@pytest.mark.parametrize("name", ["no_such_set", "no such", "small_set:2.0.0"])
def test_an_unknown_data_set_is_refused(tmp_path, name):
    with pytest.raises(prepare.PrepareError, match=f"knows no data set '{name}'"):
        prepare.prepare(name, str(tmp_path))


def test_main_takes_the_name_and_the_directory(tmp_path, capsys):
    with flagsaver.as_parsed(data_dir=str(tmp_path)):
        assert prepare.main(["prepare", "small_set"]) == 0
        assert (tmp_path / "small_set").is_dir()
        assert prepare.main(["prepare", "no_such_set"]) == 1
    assert "knows no data set" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["one", "two"]])
def test_main_wants_one_name(arguments):
    with pytest.raises(app.UsageError, match="name one data set"):
        prepare.main(["prepare", *arguments])


def test_a_command_that_fails_exits_with_one_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "experiments.prepare", "no_such_set"]
    command.append(f"--data_dir={tmp_path}")
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "knows no data set" in ended.stderr
    assert "Traceback" not in ended.stderr
