"""The index from papers to functions: it has every paper that a docstring cites."""

import re
from pathlib import Path

import papers
import pytest

import delayjax

KNOWN = papers.years()
# what docs/_ext/papers.toml had before docs/papers.bib
BEFORE = [
    "0911.0491",
    "1106.5730",
    "1412.6651",
    "1508.05003",
    "1509.04210",
    "1511.05950",
    "1602.05629",
    "1605.09774",
    "1609.08326",
    "1611.04581",
    "1705.09056",
    "1706.03471",
    "1708.02983",
    "1709.07772",
    "1710.06952",
    "1802.07928",
    "1803.01113",
    "1805.09767",
    "1806.03377",
    "1809.02839",
    "1811.06965",
    "1811.10792",
    "1812.06127",
    "1812.06162",
    "1903.03934",
    "1903.07020",
    "1907.11612",
    "1908.04207",
    "1909.10802",
    "1910.02054",
    "1910.05124",
    "2003.10579",
    "2004.05298",
    "2005.00124",
    "2006.00441",
    "2006.07405",
    "2006.09503",
    "2007.06134",
    "2011.01922",
    "2101.07259",
    "2103.00065",
    "2103.01206",
    "2104.04473",
    "2106.06639",
    "2107.02919",
    "2202.08550",
    "2206.07638",
    "2206.08307",
    "2207.14484",
    "2210.02882",
    "2305.12387",
    "2312.00839",
    "2403.17247",
    "2406.11159",
    "2407.18365",
    "2407.19234",
    "2410.04285",
    "2501.16168",
    "2505.01099",
    "2509.22860",
    "2602.03515",
    "2605.18174",
    "2605.20866",
    "2606.30634",
]


@pytest.mark.parametrize("number", sorted({*KNOWN, *papers.cited()}))
def test_each_paper_of_a_docstring_has_an_entry_and_no_entry_is_left_over(number):
    assert number in papers.cited(), "no docstring cites it: docs/papers.bib"
    assert number in KNOWN, "docs/papers.bib needs its title, authors and year"


def test_each_entry_has_a_title_authors_a_year_and_its_number():
    entries = re.split(r"(?m)^@", papers.BIB.read_text())[1:]
    assert len(entries) == len(KNOWN)
    for entry in entries:
        key = re.match(r"misc\{([\d.]+),\n", entry)[1]
        fields = dict(re.findall(r"(?m)^  (\w+) = \{(.+)\},$", entry))
        assert set(fields) == {"author", "title", "year", "eprint", "archiveprefix"}
        assert fields["eprint"] == key and fields["archiveprefix"] == "arXiv"


def test_every_paper_of_the_old_list_remains():
    assert set(BEFORE) <= set(KNOWN)


def functions_of(number):
    """What the index says below a paper."""
    _, _, after = papers.listing().partition(f"key == '{number}'\n```\n\n")
    return after.partition("\n\n")[0]


@pytest.mark.parametrize(
    "full, text", [pair for pair in papers.docstrings() if "arXiv:" in pair[1]]
)
def test_each_docstring_with_an_arxiv_number_is_in_the_index(full, text):
    name = full.replace("delayjax.", "`dj.", 1) + "`"
    for number in papers.NUMBER.findall(text):
        assert name in functions_of(number)


def test_papers_without_a_number_are_there_as_their_docstrings_cite_them():
    listing = papers.listing()
    assert "- Ho et al., A stale synchronous parallel parameter server, NIPS 2013" in (
        listing
    )
    assert "`dj.stability.Dynamics.step_limit`" in listing


def test_the_newest_year_comes_first():
    years = [line[3:] for line in papers.listing().splitlines() if line[:3] == "## "]
    assert years[:-1] == sorted(years[:-1], reverse=True)


def test_no_paper_is_cited_by_private_code_alone():
    sources = Path(delayjax.__file__).parent.rglob("*.py")
    numbers = {n for path in sources for n in papers.NUMBER.findall(path.read_text())}
    assert numbers == set(papers.cited())


def test_no_first_line_has_a_number_for_tables_of_names_have_no_footnotes():
    firsts = [(full, text.partition("\n\n")[0]) for full, text in papers.docstrings()]
    assert [full for full, first in firsts if papers.NUMBER.search(first)] == []
