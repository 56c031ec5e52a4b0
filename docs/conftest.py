"""What the examples of the pages write, they write into folders of their own."""

import tempfile

import pytest

collect_ignore = ["_ext"]  # no examples, and a part needs the site's extra


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
