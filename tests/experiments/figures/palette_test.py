"""What all figures have in common."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex, to_rgb

from experiments.figures import palette, scales, sheets
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


def luminance(color):
    """The luminance of WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in to_rgb(color)
    ]
    return sum(
        weight * part
        for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
    )


def contrast(color, page):
    high, low = sorted((luminance(color), luminance(page)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_an_svg_has_no_background_and_is_read_on_a_light_and_on_a_dark_page(tmp_path):
    colors = {"text": "black", "legend": "0.3", "note": palette.NOTE_COLOR}
    colors |= {f"line {i}": color for i, color in enumerate(palette.COLORS[:1])}
    figure, (axis,) = sheets.STYLED(sheets.sheet)("Why?", [""])
    for name, color in colors.items():
        axis.plot([0, 1], [0, 1], color=color, label=name)
    path = sheets.save(figure, tmp_path / "figure.svg")
    text = path.read_text()
    ElementTree.fromstring(text)
    (dark,) = re.findall(
        "<style>@media .prefers-color-scheme:dark.{(.*)}</style>", text
    )
    for color in colors.values():
        (light,) = re.findall(rf'stroke: {to_hex(color)}"\]{{stroke:(#\w+)!', dark)
        assert contrast(color, "white") > 4.5 and contrast(light, "#161616") > 4.5
    # there is no fill behind the axes; letters, which have no color, are light
    patches = re.findall(r'<g id="patch_\d+">\s*<path d="[^"]*" style="([^"]*)', text)
    assert patches and all("fill: none" in style for style in patches)
    (letters,) = re.findall(r"svg{fill:(#\w+)}", dark)
    assert contrast(letters, "#161616") > 4.5


def on_dark_page(svg, color):
    """The color that a line of this color has in an SVG on a dark page."""
    assert f"stroke: {to_hex(color)}" in svg
    lights = re.findall(rf'stroke: {to_hex(color)}"\]{{stroke:(#\w+)!', svg)
    return lights[0] if lights else color


@pytest.mark.parametrize(("count", "ordered"), [(7, False), (14, False), (12, True)])
def test_each_line_of_many_is_seen_on_a_light_and_on_a_dark_page(
    count, ordered, tmp_path
):
    styles = palette.styles([f"line {i}" for i in range(count)], ordered=ordered)
    figure, (axis,) = sheets.STYLED(sheets.sheet)("Why?", [""])
    for i, style in enumerate(styles.values()):
        axis.plot([0, 1], [i, i + 1], color=style.color, marker=style.marker)
    text = sheets.save(figure, tmp_path / "figure.svg").read_text()
    light = [to_hex(style.color) for style in styles.values()]
    dark = [on_dark_page(text, color) for color in light]
    assert len({*light}) == len({*dark}) == count
    assert min(contrast(color, "white") for color in light) >= 3
    assert min(contrast(color, "#161616") for color in dark) >= 3
    if ordered:  # each line has more contrast with the page than the one before
        assert sorted(light, key=luminance, reverse=True) == light
        assert sorted(dark, key=luminance) == dark


def test_the_same_figure_is_the_same_file(tmp_path):
    def written(name):
        figure, (axis,) = sheets.sheet("Why?", ["a"])
        axis.plot([0, 1], [0, 1])
        return sheets.save(figure, tmp_path / name).read_bytes()

    assert written("a.svg") == written("b.svg")
