"""The statements that the book has are statements of the configs."""

from pathlib import Path

import pandas as pd
import pytest

from experiments import configs, statements

ROOT = Path(__file__).parents[2]
BOOK = pd.read_csv(ROOT / "docs" / "book.csv", comment="#", dtype=str)
STATED = BOOK.dropna(subset=["statement"])


@pytest.mark.parametrize("name", STATED["config"].unique())
def test_each_statement_of_the_book_is_one_of_its_config_with_the_same_bound(name):
    file, colon, question = name.partition(":")
    source = f"{ROOT / 'configs' / file}.py{colon}{question}"
    stated = statements.of(source, configs.own_config(source)).published
    today = {(claim.text, claim.expected) for claim in stated}
    in_book = STATED[STATED["config"] == name]
    assert {*zip(in_book["statement"], in_book["bound"], strict=True)} <= today
