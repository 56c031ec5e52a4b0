"""What Sphinx makes of a page: links and equations."""

import re
import zlib

import pytest

pytest.importorskip("sphinx", reason="the site's extra is not installed")
pytest.importorskip("latex2mathml", reason="the site's extra is not installed")

import rendering
from sphinx.testing.util import SphinxTestApp

CONF = """
extensions = ["sphinx.ext.autodoc", "sphinx.ext.intersphinx", "rendering"]
suppress_warnings = ["ref"]
intersphinx_mapping = {"optax": ("https://optax.example/", "optax.inv")}
"""
PAGE = """
A ``dj.delayed``
================

In text ``dj.delayed``, ``optax.sgd(0.1)`` and ``optax.nothing``.

.. equation::

   x <- x - eta g

.. equation::

   def f(): pass

.. py:function:: delayjax.delayed(x)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONF)
    (folder / "index.rst").write_text(PAGE)
    head = "# Sphinx inventory version 2\n# Project: optax\n# Version: 1\n# zlib\n"
    entry = zlib.compress(b"optax.sgd py:function 1 api.html#$ -\n")
    (folder / "optax.inv").write_bytes(head.encode() + entry)
    app = SphinxTestApp("html", srcdir=folder)
    app.build()
    text = (folder / "_build" / "html" / "index.html").read_text()
    app.cleanup()
    return text


def test_a_name_in_text_is_a_link_and_in_a_heading_it_is_none(page):
    links = re.findall(r'<a [^>]*href="#delayjax.delayed"[^>]*><code class="xref', page)
    assert len(links) == 1
    assert not re.search(r"<h1>[^\n]*href=\"#delayjax", page)


def test_an_equation_is_mathml_and_code_stays_code(page):
    assert page.count('<table class="equation"') == 1
    assert "<mi>&#x003B7;</mi>" in page
    assert re.search(r"<pre>.*def", page)


def test_a_name_of_another_library_is_a_link_to_its_pages(page):
    assert '<a class="reference external" href="https://optax.example/api.html#' in page
    assert not re.search(r"<a [^>]*><code[^>]*><span[^>]*>optax.nothing", page)


def test_the_empty_line_after_a_doctest_is_not_shown():
    page = ["a\n\n```python\n>>> 1\n1\n\n```\n\ntext\n\n```\nplain\n\n```\n"]
    rendering.read_source(None, "guide", page)
    assert page == ["a\n\n```python\n>>> 1\n1\n```\n\ntext\n\n```\nplain\n\n```\n"]
