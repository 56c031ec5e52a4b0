"""What Sphinx makes of a page: links, equations, and tables that a phone can show."""

import re

import pytest

pytest.importorskip("sphinx", reason="the site's extra is not installed")

from sphinx.testing.util import SphinxTestApp

CONF = """
extensions = ["sphinx.ext.autodoc", "rendering"]
suppress_warnings = ["ref"]
"""
PAGE = """
A ``dj.delayed``
================

In text ``dj.delayed`` and ``optax.sgd``.

.. equation::

   x <- x - eta g

.. equation::

   def f(): pass

.. list-table::
   :header-rows: 1

   * - a
     - b
     - c
   * - row
     - 3
     - 4
   * - 1
     - 2
     -

.. py:function:: delayjax.delayed(x)
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "conf.py").write_text(CONF)
    (folder / "index.rst").write_text(PAGE)
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
    assert "<mi>η</mi>" in page
    assert re.search(r"<pre>.*def", page)


def test_each_cell_has_the_name_of_its_column(page):
    assert 'class="in-blocks' in page
    assert '<span class="column">a</span>1' in page
    assert '<span class="column">a</span>row' not in page
    assert '<span class="column">b</span>2' in page
    assert "empty" in re.findall(r"<td[^>]*>", page)[-1]
