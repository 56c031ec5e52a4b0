"""The built site in a browser: no page scrolls sideways, and search has the papers."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import reference

ROOT = Path(__file__).parents[2]
WIDTHS = [390, 600, 800, 1024, 1280, 1440]
# Pages that the site makes of source code, and lists that Sphinx makes of the others.
MADE = ["_modules", "_sources", "_static", "genindex.html", "py-modindex.html"]
# what a reader would see beyond the window's right edge
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def browser():
    """Playwright's Chromium, or that of the system."""
    api = pytest.importorskip("playwright.sync_api")
    paths = [None, *filter(None, map(shutil.which, ["chromium", "google-chrome"]))]
    with api.sync_playwright() as playwright:
        for path in paths:
            try:
                launched = playwright.chromium.launch(executable_path=path)
            except api.Error:
                continue
            yield launched
            launched.close()
            return
    pytest.skip("no browser is installed: `playwright install chromium`")


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    """The folder of the site: DELAYJAX_SITE, or one that is built now."""
    if "DELAYJAX_SITE" in os.environ:
        return Path(os.environ["DELAYJAX_SITE"])
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "docs", folder]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """The pages that someone wrote, or that have a public name."""
    result = [path.relative_to(site) for path in sorted(site.rglob("*.html"))]
    return [path for path in result if path.parts[0] not in MADE]


def test_no_page_scrolls_sideways(browser, site, pages):
    assert len(pages) > 200  # a page for each public name
    window = browser.new_page()
    too_wide = []
    for page in pages:
        window.goto((site / page).as_uri())
        for width in WIDTHS:
            window.set_viewport_size({"width": width, "height": 900})
            if (beyond := window.evaluate(TOO_WIDE)) > 0:
                too_wide.append(f"{page} at {width}: {beyond} pixels")
    assert too_wide == []


def test_a_table_stands_as_blocks_on_a_phone_and_as_a_table_on_a_desk(browser, site):
    window = browser.new_page(viewport={"width": 390, "height": 900})
    window.goto((site / "clusters.html").as_uri())
    cell = window.locator("table.in-blocks td[data-column]").first
    display = "cell => getComputedStyle(cell).display"
    name = "cell => getComputedStyle(cell, '::before').content"
    assert cell.evaluate(display) == "block"
    assert cell.get_attribute("data-column") in cell.evaluate(name)
    window.set_viewport_size({"width": 1280, "height": 900})
    assert cell.evaluate(display) == "table-cell"
    assert cell.evaluate(name) == "none"


def test_search_finds_the_function_of_a_paper_by_the_papers_term(browser, site):
    window = browser.new_page()
    window.goto((site / "search.html").as_uri() + "?q=staleness-aware+SGD")
    window.locator("#search-results ul.search li").first.wait_for()
    links = window.locator("#search-results ul.search li a")
    targets = [link.get_attribute("href") for link in links.all()]
    assert any("names/delayjax.modulation.inverse.html" in each for each in targets)


def test_a_page_of_the_reference_has_at_most_3000_words(site, pages):
    lengths = {}
    for page in pages:
        if page.parts[0] == "reference":
            html = (site / page).read_text()
            article = re.search(r"<article.*?</article>", html, re.DOTALL)[0]
            text = re.sub(r"<math.*?</math>|<[^>]+>", " ", article, flags=re.DOTALL)
            lengths[str(page)] = len(text.split())
    assert {page: words for page, words in lengths.items() if words > 3000} == {}


def test_each_public_name_has_a_page_of_its_own(site):
    index = (site / "searchindex.js").read_text()
    documents = json.loads(index[index.index("{") : index.rindex("}") + 1])["docnames"]
    missing = reference.everything() - {
        name.removeprefix("reference/names/") for name in documents
    }
    assert missing == set()
