"""What figures with a row for each trace share: staleness, and times of updates."""

import numpy as np
import pytest

from experiments import figures
from experiments.figures.drawing import staleness, update_times
from tests.experiments.figures.legible import check_legible, legend, texts
from tests.experiments.figures.runs import made, timed, traced

# how each marks a mean, which mean that is, and what its legend begins with
KINDS = {
    "staleness": (
        lambda line: line.get_linewidth() == 2.2,
        lambda trace: trace.summary().mean,
        "share of its gradients",
    ),
    "update_times": (
        lambda line: line.get_marker() == "o",
        lambda trace: trace.seconds[-1] / trace.num_updates,
        "9 of 10 updates",
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_mean_and_where_there_is_one_the_theory_are_marked_and_written(
    name, tmp_path
):
    def theory(protocol, workers):
        return None if protocol == "ssp" else workers / 2

    run, (is_mean, mean_of, shown) = traced(tmp_path), KINDS[name]
    figure = getattr(figures, name)(theory=theory).draw(run)
    (axis,) = figure.axes
    means = [line.get_xdata()[0] for line in axis.lines if is_mean(line)]
    assert means == pytest.approx([mean_of(trace) for trace in run.traces.values()])
    (diamond,) = (line for line in axis.lines if line.get_marker() == "D")
    assert (*diamond.get_xdata(), *diamond.get_ydata()) == (1.5, 0)
    first, second = (f"{mean:.3g}" for mean in means)
    assert {f"{first} (1.5)", second, "mean (theory)"} <= set(texts(figure))
    assert legend(figure) == [shown, "mean", "theory"]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels == ["hardsync", "ssp"]
    bottom, top = axis.get_ylim()
    assert bottom > top
    check_legible(figure)
    # without theory none is promised
    figure = getattr(figures, name)().draw(run)
    assert legend(figure) == [shown, "mean"]
    assert not any("theory" in text for text in texts(figure))


@pytest.mark.parametrize("name", [*KINDS, "gantt"])
def test_a_run_without_traces_says_so(name, tmp_path):
    with pytest.raises(ValueError, match="no traces"):
        getattr(figures, name)().draw(made(tmp_path))


@pytest.mark.parametrize("module", [staleness, update_times])
def test_a_trace_without_updates_has_an_empty_row(module):
    figure = module.of_traces({"mindflayer": timed([]), "hardsync()": timed([1.0])})
    assert "none" in texts(figure)
    check_legible(figure)


@pytest.mark.parametrize("module", [staleness, update_times])
def test_many_arms_with_long_names_are_legible(module):
    trace = timed(np.arange(1.0, 361.0), [0] * 300 + [0, 5, 300] * 20)
    names = [f"ringmaster({k}, stop=True) workers={8 * k}" for k in range(1, 19)]
    traces = dict.fromkeys(names, trace)
    check_legible(module.of_traces(traces, dict.fromkeys(names, 254.0)))
