"""What all figures share."""

import pytest

from experiments.figures import scales, sheets
from tests.experiments.figures.legible import texts


def test_a_warning_about_many_names_two_of_them():
    figure, _ = sheets.sheet(
        "Why?", [""], notes=["a; b; c: few.", "a; b; c; d; e: many."]
    )
    shown = " ".join(" ".join(texts(figure)).split())
    assert "a; b; c: few." in shown
    assert "a; b and 3 more: many." in shown


@pytest.mark.parametrize(
    ("values", "labels"),
    [((0.03, 0.7), {"0.05", "0.1", "0.2", "0.5"}), ((0.03, 40), {"0.1", "1", "10"})],
)
def test_logarithmic_ticks_are_read_as_numbers(values, labels):
    _, (axis,) = sheets.sheet("Why?", [""])
    axis.plot(values, values)
    axis.set_yscale("log")
    scales.log_ticks(axis.yaxis, values)
    low, high = axis.get_ylim()
    shown = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
    assert {text.get_text() for at, text in shown if low < at < high} == labels
