"""The tidy table: what is read, which step sizes are chosen, what a query answers."""

import csv
import itertools
import json
import math

import numpy as np
import pytest

from experiments import results
from experiments.results import Series

PLAIN = Series("sgd", "constant", "none", "after", "none", 0.0)


def record(**changes):
    """One row of results.csv as it is written."""
    row = {
        "task": "digits_mlp",
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "delay_law": "constant",
        "delay": 0,
        "modulation": "none",
        "placement": "after",
        "compensation": "none",
        "strength": 0.0,
        "seed": 0,
        "steps": 600,
        "diverged": 0,
        "diverged_step": -1,
        "train_loss": 0.5,
        "test_loss": 0.6,
        "train_accuracy": 0.9,
        "test_accuracy": 0.8,
        "staleness_mean": 0.0,
        "staleness_p99": 0,
        "staleness_max": 0,
        "clipped": 0.0,
        "dropped": 0.0,
    }
    assert not changes.keys() - row.keys()
    return row | changes


def read(folder, records):
    path = folder / "results.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return results.read(path)


def grid(loss, *, rates=(0.1, 0.2, 0.4), delays=(0, 4), seeds=(0, 1, 2), **changes):
    """Rows whose training loss is a function of step size, delay and seed."""
    return [
        record(
            learning_rate=rate,
            delay=delay,
            seed=seed,
            train_loss=loss(rate, delay, seed),
            diverged=int(not math.isfinite(loss(rate, delay, seed))),
            **changes,
        )
        for rate, delay, seed in itertools.product(rates, delays, seeds)
    ]


def best_at(rate_at_delay):
    """A loss that is least at a given step size of each delay."""
    return lambda rate, delay, seed: 0.1 + abs(math.log(rate / rate_at_delay[delay]))


def pair(curves, series=PLAIN):
    """The fixed and the re-tuned curve of a series."""
    fixed, tuned = (curve for curve in curves if curve.series == series)
    assert (fixed.retuned, tuned.retuned) == (False, True)
    return fixed, tuned


def test_a_row_is_read_with_its_types(tmp_path):
    (row,) = read(tmp_path, [record(delay="2.5", seed=3, test_accuracy="")])
    assert (row.delay, row.seed, row.diverged) == (2.5, 3, False)
    assert math.isnan(row.test_accuracy)
    assert row.value("train_loss") == 0.5
    assert row.value("gap") == pytest.approx(0.6 - 0.5)


@pytest.mark.parametrize("loss", ["nan", "inf", "", "0.3"])
def test_a_diverged_row_has_no_value_whatever_is_written(tmp_path, loss):
    diverged = int(loss == "0.3")
    (row,) = read(tmp_path, [record(train_loss=loss, diverged=diverged)])
    assert row.diverged
    assert all(math.isnan(row.value(metric)) for metric in results.METRICS)


def test_a_table_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"experiments\.main"):
        results.read(tmp_path / "results.csv")
    with pytest.raises(ValueError, match="lacks the columns strength, dropped"):
        read(
            tmp_path,
            [
                {k: v for k, v in record().items() if k not in ("strength", "dropped")},
            ],
        )
    with pytest.raises(ValueError, match=r"line 2: `seed` must be int, got 'x'"):
        read(tmp_path, [record(seed="x")])
    (tmp_path / "results.csv").write_text(",".join(record()) + "\n")
    with pytest.raises(ValueError, match="no rows"):
        results.read(tmp_path / "results.csv")


@pytest.mark.parametrize("select_by", ["train_loss", "test_accuracy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_selection_is_the_exhaustive_one(tmp_path, seed, select_by):
    draw = np.random.default_rng(seed)
    rates, delays, seeds = (0.01, 0.1, 1.0), (0, 1, 8), (0, 1, 2)
    records = [
        record(
            optimizer=optimizer,
            modulation=law,
            learning_rate=rate,
            delay=delay,
            seed=replicate,
            diverged=int(draw.random() < 0.15),
            train_loss=draw.random(),
            test_loss=draw.random(),
            test_accuracy=draw.random(),
        )
        for optimizer, law, rate, delay, replicate in itertools.product(
            ("sgd", "adam"), ("none", "inverse"), rates, delays, seeds
        )
    ]

    def cell(optimizer, law, rate, delay):
        return [
            row
            for row in records
            if (row["optimizer"], row["modulation"]) == (optimizer, law)
            and (row["learning_rate"], row["delay"]) == (rate, delay)
        ]

    def best(optimizer, law, delay):
        scores = []
        for rate in rates:
            rows = cell(optimizer, law, rate, delay)
            sign = -1 if select_by == "test_accuracy" else 1
            score = sign * sum(row[select_by] for row in rows)
            scores.append(math.inf if any(r["diverged"] for r in rows) else score)
        return rates[scores.index(min(scores))]

    found = results.curves(read(tmp_path, records), "test_loss", select_by=select_by)
    assert len(found) == 2 * 2 * 2
    for curve in found:
        optimizer, law = curve.series.optimizer, curve.series.modulation
        assert [point.delay for point in curve.points] == list(delays)
        for point in curve.points:
            rate = best(optimizer, law if curve.retuned else "none", 0)
            if curve.retuned:
                rate = best(optimizer, law, point.delay)
            assert point.learning_rate == rate
            rows = cell(optimizer, law, rate, point.delay)
            expected = [
                math.nan if row["diverged"] else row["test_loss"] for row in rows
            ]
            np.testing.assert_array_equal(point.values, expected)
            assert point.diverged == sum(row["diverged"] for row in rows)


def test_a_step_under_which_one_seed_diverges_loses(tmp_path):
    def loss(rate, delay, seed):
        return math.inf if (rate, seed) == (0.4, 2) else 1.0 / rate

    _, tuned = pair(results.curves(read(tmp_path, grid(loss)), "train_loss"))
    assert [point.learning_rate for point in tuned.points] == [0.2, 0.2]


def test_a_fixed_step_that_diverges_stays_in_the_curve_without_a_mean(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if delay and rate > 0.1 and seed == 1 else 1.0 / rate

    fixed, tuned = pair(results.curves(read(tmp_path, grid(loss)), "train_loss"))
    assert [point.learning_rate for point in fixed.points] == [0.4, 0.4]
    late = fixed.points[1]
    assert late.diverged == 1
    assert math.isnan(late.mean) and all(map(math.isnan, late.spread))
    assert late.values[0] == 1.0 / 0.4  # the seeds that survived are still told
    assert tuned.points[1].diverged == 0
    assert tuned.points[1].mean == pytest.approx(1.0 / 0.1)


def test_the_smaller_of_two_equal_steps_is_chosen(tmp_path):
    rows = read(tmp_path, grid(lambda rate, delay, seed: 1.0)[::-1])
    _, tuned = pair(results.curves(rows, "train_loss"))
    assert [point.learning_rate for point in tuned.points] == [0.1, 0.1]


def test_the_fixed_step_is_that_of_the_plain_baseline(tmp_path):
    plain = grid(best_at({0: 0.2, 4: 0.1}))
    other = grid(best_at({0: 0.4, 4: 0.4}), compensation="dc", strength=0.04)
    series = PLAIN._replace(compensation="dc", strength=0.04)
    fixed, tuned = pair(results.curves(read(tmp_path, plain + other), "gap"), series)
    assert [point.learning_rate for point in fixed.points] == [0.2, 0.2]
    assert [point.learning_rate for point in tuned.points] == [0.4, 0.4]
    fixed, _ = pair(results.curves(read(tmp_path, other), "gap"), series)
    assert [point.learning_rate for point in fixed.points] == [0.4, 0.4]


def test_the_baseline_of_two_placements_counts_each_seed_once(tmp_path):
    rows = grid(best_at({0: 0.2, 4: 0.2})) + grid(
        best_at({0: 0.2, 4: 0.2}), placement="before", test_loss=9.0
    )
    table = results.table(read(tmp_path, rows))
    assert list(table) == [PLAIN]
    cell = table[PLAIN][4][0.2]
    assert [row.seed for row in cell] == [0, 1, 2]
    assert {row.test_loss for row in cell} == {0.6}


def test_the_spread_is_the_range_and_the_deviation_has_n_minus_1(tmp_path):
    values = (0.2, 0.5, 0.9)
    rows = grid(lambda rate, delay, seed: values[seed])
    _, tuned = pair(results.curves(read(tmp_path, rows), "train_loss"))
    point = tuned.points[0]
    assert point.values == values
    assert point.spread == (0.2, 0.9)
    mean = sum(values) / 3
    assert point.mean == pytest.approx(mean)
    assert point.deviation == pytest.approx(
        math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    )
    rows = read(tmp_path, grid(lambda rate, delay, seed: 1.0, seeds=(0,)))
    assert math.isnan(pair(results.curves(rows, "train_loss"))[1].points[0].deviation)


def test_a_best_step_at_an_end_of_the_grid_is_on_the_edge(tmp_path):
    rows = read(tmp_path, grid(best_at({0: 0.1, 4: 0.2, 8: 0.4}), delays=(0, 4, 8)))
    curves = results.curves(rows, "train_loss")
    _, tuned = pair(curves)
    assert [point.edge for point in tuned.points] == ["smallest", "", "largest"]
    assert [point.on_edge for point in tuned.points] == [True, False, True]
    low, high = results.edge_warnings(curves)
    for sentence, words in (
        (low, ("sgd", "delay 0 ", "0.1", "smallest tried", "add smaller")),
        (high, ("sgd", "delay 8 ", "0.4", "largest tried", "add larger")),
    ):
        assert all(word in sentence for word in (*words, "opt.sgd.learning_rate"))


def test_delays_of_one_edge_and_series_of_one_fault_share_a_sentence(tmp_path):
    best = best_at({0: 0.4, 4: 0.4})
    rows = read(tmp_path, grid(best) + grid(best, modulation="inverse"))
    (sentence,) = results.edge_warnings(results.curves(rows, "train_loss"))
    assert sentence.startswith("sgd; sgd, inverse after: the best step size at delays")
    assert "delays 0, 4 is 0.4" in sentence


def test_a_fair_grid_gives_no_warning(tmp_path):
    rows = read(tmp_path, grid(best_at({0: 0.2, 4: 0.2})))
    assert results.edge_warnings(results.curves(rows, "train_loss")) == []


def test_one_step_size_is_no_edge_but_a_warning(tmp_path):
    rows = read(tmp_path, grid(lambda *cell: 1.0, rates=(0.3,)))
    curves = results.curves(rows, "train_loss")
    assert not any(point.on_edge for curve in curves for point in curve.points)
    (sentence,) = results.edge_warnings(curves)
    assert "only the step size 0.3" in sentence


def test_a_delay_at_which_all_diverges_is_told(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if delay else abs(rate - 0.2)

    curves = results.curves(read(tmp_path, grid(loss)), "train_loss")
    _, tuned = pair(curves)
    assert tuned.points[1].diverged == 3
    (sentence,) = results.edge_warnings(curves)
    assert "every step size diverged at delay 4, down to 0.1" in sentence


def test_a_fixed_step_that_was_not_run_is_told(tmp_path):
    best = best_at({0: 0.2, 4: 0.2})
    rows = [
        row for row in grid(best) if (row["delay"], row["learning_rate"]) != (4, 0.2)
    ]
    curves = results.curves(read(tmp_path, rows), "train_loss")
    fixed, _ = pair(curves)
    assert fixed.points[1].values == () and math.isnan(fixed.points[1].mean)
    sentence = results.edge_warnings(curves)[0]
    assert "fixed step size 0.2 was not run at delay 4" in sentence


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_seeds_are_told(tmp_path, count):
    rows = grid(best_at({0: 0.2, 4: 0.2}), seeds=range(count))
    (sentence,) = results.edge_warnings(
        results.curves(read(tmp_path, rows), "train_loss")
    )
    assert sentence.startswith(f"{count} seed")


def test_what_the_task_does_not_record_is_refused(tmp_path):
    rows = read(tmp_path, grid(best_at({0: 0.2, 4: 0.2}), test_accuracy=""))
    assert not results.recorded(rows, "test_accuracy")
    assert results.recorded(rows, "gap")
    with pytest.raises(ValueError, match="`metric` is 'test_accuracy'"):
        results.curves(rows, "test_accuracy")
    with pytest.raises(ValueError, match="`select_by` is 'test_accuracy'"):
        results.curves(rows, "train_loss", select_by="test_accuracy")
    with pytest.raises(ValueError, match="`metric` must be among train_loss"):
        results.curves(rows, "loss")


def test_queries_name_what_was_measured(tmp_path):
    def loss(rate, delay, seed):
        return (
            math.nan if rate * delay > 1 else best_at({0: 0.4, 4: 0.2})(rate, delay, 0)
        )

    rows = read(
        tmp_path,
        grid(loss)
        + grid(loss, compensation="dc", strength=0.04, test_loss=0.7)
        + grid(loss, compensation="dc", strength=0.4, test_loss=0.8)
        + grid(loss, modulation="inverse", test_accuracy=0.3)
        + grid(loss, modulation="inverse", placement="before", test_accuracy=0.4),
    )

    def measure(query):
        return results.measure(rows, query)

    assert measure("train_loss/sgd/delay=4") == pytest.approx(0.1)
    assert math.isnan(measure("train_loss/sgd/delay=4/fixed"))
    assert measure("train_loss/sgd/delay=0/fixed") == pytest.approx(0.1)
    assert measure("gap/sgd/delay=0") == pytest.approx(0.6 - 0.1)
    assert measure("learning_rate/sgd/delay=4") == 0.2
    assert measure("learning_rate/sgd/delay=4/fixed") == 0.4
    assert measure("stable_step/sgd/delay=4") == 0.2
    assert measure("stable_step/sgd/delay=0") == 0.4
    dc = "test_loss/sgd/delay=4/compensation=dc"
    assert measure(f"{dc},strength=4e-2") == pytest.approx(0.7)
    assert measure(f"{dc}/strength=4e-1") == pytest.approx(0.8)
    law = "test_accuracy/sgd/delay=4/modulation=inverse"
    assert measure(f"{law},placement=before,law=constant") == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("loss/sgd/delay=0", "metric must be among"),
        ("train_loss/sgd", "must have the form"),
        ("train_loss/sgd/fixed", "must have the form"),
        ("train_loss/sgd/strength=1", "must have the form"),
        ("train_loss/sgd/delay=0/step=3", "'step=3' is no KEY=VALUE"),
        ("train_loss/sgd/delay=x", "delay must be a number, got 'x'"),
        ("train_loss/adam/delay=0", "names none of the run's series: sgd"),
        ("train_loss/sgd/delay=0/modulation=inverse", "names several .* before"),
        ("train_loss/sgd/delay=3", "no delay 3, only 0, 4"),
    ],
)
def test_an_unknown_query_says_so(tmp_path, query, match):
    best = best_at({0: 0.2, 4: 0.2})
    rows = read(
        tmp_path,
        grid(best)
        + grid(best, modulation="inverse")
        + grid(best, modulation="inverse", placement="before"),
    )
    with pytest.raises(ValueError, match=match):
        results.measure(rows, query)


def test_a_stable_step_is_below_the_first_that_diverges(tmp_path):
    def loss(rate, delay, seed):
        return math.nan if rate == 0.2 and seed == 1 else 1.0

    rows = read(tmp_path, grid(loss))
    assert results.measure(rows, "stable_step/sgd/delay=4") == 0.1


def test_names_tell_series_apart_and_nothing_more():
    dc = PLAIN._replace(compensation="dc")
    gap = PLAIN._replace(compensation="gap_aware")
    law = PLAIN._replace(modulation="inverse", placement="before")
    late = PLAIN._replace(delay_law="geometric")
    among = [PLAIN, dc, dc._replace(strength=0.5), gap, law]
    assert [results.label(series, among) for series in among] == [
        *("sgd", "sgd, dc 0", "sgd, dc 0.5", "sgd, gap_aware", "sgd, inverse before"),
    ]
    assert results.label(PLAIN, among, optimizer=False) == "plain"
    assert results.label(law, among, optimizer=False) == "inverse before"
    assert results.label(late, [PLAIN, late]) == "sgd, geometric"


@pytest.mark.parametrize(
    ("task", "unit"),
    [
        ("digits_mlp", "nats"),
        ("tokens:/data/*.bin", "nats"),
        ("tfds:cifar10", "nats"),
        ("quadratic", ""),
        ("mine.tasks:make", ""),
    ],
)
def test_only_cross_entropies_are_in_nats(task, unit):
    assert results.loss_unit(task) == unit


def test_metrics_are_read_up_to_a_line_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert results.read_metrics(path) == []
    rows = [{"program": "sgd-none-after", "step": step} for step in (50, 100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"program": "s')
    assert results.read_metrics(path) == rows


def test_a_folder_without_a_run_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"experiments.main.*{tmp_path}"):
        results.read_config(tmp_path)
