"""Writes a TFDS data set as array_record, which the tasks read without TensorFlow.

Once a data set, with a network:

    python -m experiments.prepare cifar10 [--data_dir=DIR]
"""

import os
import sys
from collections.abc import Sequence

from absl import app, flags

_DATA_DIR = flags.DEFINE_string(
    "data_dir", "", "Where data sets live; the default is TFDS's own."
)


class PrepareError(Exception):
    """Why a data set could not be written, and what to do."""


def prepare(name: str, data_dir: str = "") -> str:
    """Writes the data set `name` as array_record, unless it is there.

    Args:
        name: of the catalogue or of an imported builder class, with a configuration
            where it has several: "cifar10", "cifar10_corrupted/fog_3".
        data_dir: where data sets live; "" is TFDS's own default.

    Returns:
        What was done, as a sentence.

    Raises:
        PrepareError: if that failed; the text says what to do.
    """
    os.environ.setdefault("NO_GCE_CHECK", "true")  # or TFDS asks the network for GCE
    try:
        import requests
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise PrepareError(
            f"Packages are missing ({error}): pip install -e '.[tfds]'."
        ) from error

    where = os.path.expanduser(data_dir) or None
    try:
        builder = tfds.builder(name, data_dir=where)
    except (ValueError, AssertionError) as error:  # the latter: an unknown version
        raise PrepareError(
            f"TFDS knows no data set {name!r}: {str(error).splitlines()[0]}"
            " See https://www.tensorflow.org/datasets/catalog/overview."
        ) from error
    if builder.is_prepared():
        file_format = builder.info.file_format.value
        if file_format != "array_record":
            raise PrepareError(
                f"{name} is prepared as {file_format} at {builder.data_path}, which"
                " only TensorFlow reads. Choose another --data_dir, or remove that"
                " folder."
            )
        return f"{name} is already prepared at {builder.data_path}."

    print(f"Writing {name} to {builder.data_path}.")
    print("Without a network, TFDS tries for some minutes before it gives up.")
    try:
        builder.download_and_prepare(file_format="array_record")
    except ModuleNotFoundError as error:
        if "tensorflow" not in str(error):
            raise
        raise PrepareError(_needs_tensorflow(name, builder.data_dir_root)) from error
    except requests.exceptions.RequestException as error:
        raise PrepareError(
            f"{name} could not be downloaded: {error}\nRun this where there is a"
            f" network, and copy {builder.data_dir_root} here."
        ) from error
    except (OSError, AssertionError) as error:  # the latter: downloads made by hand
        raise PrepareError(f"{name} could not be written: {error}") from error
    sizes = {split: info.num_examples for split, info in builder.info.splits.items()}
    return f"{name} is prepared at {builder.data_path}, examples {sizes}."


def _needs_tensorflow(name: str, data_dir: os.PathLike) -> str:
    return (
        f"The code that writes {name} needs TensorFlow; reading it does not. Once, in a"
        " throw-away environment:\n"
        "    python -m venv tf_env\n"
        "    tf_env/bin/pip install tensorflow-cpu tensorflow-datasets array-record"
        " importlib-resources pillow absl-py\n"
        f"    tf_env/bin/python -m experiments.prepare {name} --data_dir={data_dir}\n"
        f"Then read {data_dir}, here or wherever you copy it, with\n"
        f"    tasks.images({name!r}, data_dir={str(data_dir)!r})"
    )


def main(argv: Sequence[str]) -> int:
    """Prepares the one data set named on the command line."""
    if len(argv) != 2:
        raise app.UsageError("name one data set, as in: experiments.prepare cifar10")
    try:
        print(prepare(argv[1], _DATA_DIR.value))
    except PrepareError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    app.run(main)
