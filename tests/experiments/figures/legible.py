"""Whether a figure can be read."""

import itertools

from matplotlib.text import Text


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def check_legible(figure):
    """Every text is at least 10 points high, none covers its neighbor on an axis, and
    nothing reaches out of the picture.
    """
    figure.draw_without_rendering()
    for text in figure.findobj(Text):
        assert text.get_fontsize() >= 10, text
    # in inches; what an axis does not draw is not counted
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 > -0.01 and box.x1 < width + 0.01
    assert box.y0 > -0.01 and box.y1 < height + 0.01
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            labels = [
                tick.label1
                for tick in axis.get_major_ticks()
                if low <= tick.get_loc() <= high
            ]
            boxes = [
                label.get_window_extent()
                for label in labels
                if label.get_visible() and label.get_text()
            ]
            for first, second in itertools.combinations(boxes, 2):
                assert not first.overlaps(second), axis


def legend(figure):
    """The names in the legend below a figure, in their order."""
    return [
        text.get_text()
        for legend in figure.findobj(lambda artist: hasattr(artist, "legend_handles"))
        for text in legend.get_texts()
    ]
