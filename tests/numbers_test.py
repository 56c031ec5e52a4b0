"""Each quantity of the first pages is recomputed from a table of ours.

docs/numbers.csv has a row a number: the page, its text, the number as written, and
where it comes from. That is a column of a .csv file, of the rows `where`; or, of what
was measured by hand, a page with the table and the command. `take` is min, max, mean or
median, or a pattern whose group is the number in a text.
"""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent
NUMBERS = pd.read_csv(ROOT / "docs" / "numbers.csv", dtype=str, na_filter=False)
ROWS = NUMBERS.to_dict("records")
QUANTITY = re.compile(r"\d[\d,]*(?:\.\d+)?(?= (?:%|nats|µs|times))|\d+\.\d+")
NO_QUANTITY = (
    r"```.*?```",
    r"<!-- book: begin.*?book: end -->",  # tests/experiments/book/page_test.py
    r"<!-- rules: begin.*?rules: end -->",  # tests/experiments/comparison/page_test.py
    r"!\[[^]]*\]",
    r"Python 3\.\d+(?: to 3\.\d+)?|Apache-2\.0",
    r"95 %\s+intervals",
)


def text_of(page):
    """The text of a page, on one line, without parts that have no quantity."""
    text = (ROOT / page).read_text()
    for pattern in NO_QUANTITY:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def number(row):
    """The number in the table of a row."""
    path = ROOT / row["file"]
    if path.suffix != ".csv":
        return re.search(row["take"], path.read_text())[1]
    has_comment = path.read_text().startswith("#")
    table = pd.read_csv(path, skiprows=int(has_comment))
    values = table.query(row["where"])[row["column"]]
    if row["take"] in ("min", "max", "mean", "median"):
        return getattr(values, row["take"])()
    (text,) = set(values)
    return re.search(row["take"], text)[1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['page']}: {row['number']}")
def test_a_number_of_a_page_is_that_of_its_table_rounded(row):
    decimals = len(row["number"].partition(".")[2])
    assert f"{abs(float(number(row))):.{decimals}f}" == row["number"]
    assert row["number"] in row["text"]
    assert row["text"] in text_of(row["page"])


def test_what_is_on_no_csv_file_has_the_command_that_measures_it():
    for row in ROWS:
        by_hand = not row["file"].endswith(".csv")
        assert by_hand == row["command"].startswith("python -m ")


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/gallery.md"])
def test_each_quantity_of_a_page_has_a_row(page):
    left = text_of(page)
    for text, rows in NUMBERS[NUMBERS["page"] == page].groupby("text"):
        assert {*QUANTITY.findall(text)} <= {*rows["number"]}
        left = left.replace(text, "")
    assert QUANTITY.findall(left) == []


@pytest.mark.parametrize(
    ("text", "quantities"),
    [
        ("it takes 18 % less, or 7% more", ["18"]),
        ("0.14 to 0.20 nats, 5 to 13 µs", ["0.14", "0.20", "13"]),
        ("1,000 times; 400 updates of version 3", ["1,000"]),
    ],
)
def test_a_quantity_is_a_decimal_number_or_has_a_unit(text, quantities):
    assert QUANTITY.findall(text) == quantities


def test_the_updates_from_which_one_program_is_faster_are_those_of_its_table():
    """The crossing of the lines through the two rows, rounded to a hundred updates."""
    page = text_of("docs/costs.md")
    rows = re.findall(r"\| (\d+),000 \| (\d+\.\d+) s \| (\d+\.\d+) s ", page)
    (few, one, other), (many, one_later, other_later) = ([*map(float, r)] for r in rows)
    slower = (other_later - other - one_later + one) / (many - few)
    updates = round(1000 * (few + (one - other) / slower), -2)
    sentence = f"below about {updates:,.0f} updates one scan after another is faster"
    assert sentence in page
