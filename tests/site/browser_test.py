"""Pages in a browser: none scrolls sideways, and the site's search has the papers."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference

from experiments import report
from experiments.book import page as book
from tests.experiments.figures.runs import made
from tests.support.commands import finish

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


def too_wide(browser, files):
    """The pages that scroll sideways, each with its width."""
    window, wide = browser.new_page(), []
    for file in files:
        window.goto(file.as_uri())
        for width in WIDTHS:
            window.set_viewport_size({"width": width, "height": 900})
            if (beyond := window.evaluate(TOO_WIDE)) > 0:
                wide.append(f"{file} at {width}: {beyond} pixels")
    return wide


def test_no_page_scrolls_sideways(browser, site, pages):
    assert len(pages) > 200  # a page for each public name
    assert too_wide(browser, [site / page for page in pages]) == []


def test_no_report_book_or_advice_scrolls_sideways(browser, tmp_path):
    log, advice = tmp_path / "times.csv", tmp_path / "advice.html"
    times = np.random.default_rng(0).exponential(size=(60, 3))
    rows = [f"{w},{step},{time}" for (step, w), time in np.ndenumerate(times)]
    log.write_text("\n".join(["worker,step,seconds", *rows]))
    asked = log, f"--out={advice}", "--target=0.3", "--seeds=2"
    code, output = finish(*map(str, asked), module="experiments.advise")
    assert code == 0, output
    bound = tmp_path / "book.html"
    bound.write_text(book.html(*book.read()))
    files = [report.write(made(tmp_path)), bound, advice]
    assert too_wide(browser, files) == []


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
