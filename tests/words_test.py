"""The site's links from words to their meanings."""

import re

import pytest

pytest.importorskip("sphinx", reason="the site's extra is not installed")

import words
from sphinx.testing.util import SphinxTestApp

from tests.support.commands import ROOT

TABLE = """
Words
=====

==================  =================
word                meaning
==================  =================
staleness ``tau``   age of a gradient
history             the last gradients
==================  =================
"""
PAGE = """
Staleness and history
=====================

Two histories, a history, the staleness, ``outbox`` and `staleness <https://x.example>`_.

*A staleness.* A prehistory.
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    (folder / "conf.py").write_text('extensions = ["words"]\n')
    for name, text in {
        "concepts/words": TABLE,
        "index": PAGE,
        "reference/name": PAGE,
    }.items():
        path = folder / f"{name}.rst"
        path.parent.mkdir(exist_ok=True)
        path.write_text(":orphan:\n" + text)
    app = SphinxTestApp("html", srcdir=folder)
    app.build()
    built = folder / "_build" / "html"
    texts = {
        name: (built / f"{name}.html").read_text()
        for name in ("concepts/words", "index", "reference/name")
    }
    app.cleanup()
    return texts


def test_the_first_of_each_word_in_text_links_to_its_row(pages):
    links = re.findall(
        r'href="concepts/words.html#([\w-]+)"><span[^>]*>(\w+)<', pages["index"]
    )
    assert links == [("word-history", "histories"), ("word-staleness", "staleness")]
    for anchor, _ in links:
        assert re.search(rf'<td[^>]* id="{anchor}"', pages["concepts/words"])


def test_pages_that_are_made_of_docstrings_and_the_words_own_have_no_such_links(pages):
    assert "#word-" not in pages["reference/name"]
    assert "#word-" not in pages["concepts/words"]


def test_each_linked_word_begins_a_row_of_the_page():
    table = (ROOT / "docs" / "concepts" / "words.md").read_text()
    for word in words.LINKED:
        assert len(re.findall(rf"^\| {word}\b", table, re.MULTILINE)) == 1
