"""A study trains each row where it belongs, and goes on where it was cut off."""

import numpy as np
import pytest

from experiments import tasks
from experiments.comparison import cures, search, studies, study, trials
from experiments.comparison.study import Cell, Stored, Study, part

NAMED = {cure.name: cure for cure in cures.CURES}
TINY = search.Effort(
    rounds=(search.Round(4, 1), search.Round(4, 1, 0.3)), finalists=2, confirming=2
)


def tiny(*names, **options):
    setting = trials.Setting(tasks.quadratic((0.1, 1.0), noise=0.1), budget=20)
    given = dict(effort=TINY, searches=2, reporting=3)
    optimizers = {name: cures.OPTIMIZERS[name] for name in ("sgd", "adam")}
    rows = [NAMED[name] for name in names]
    return Study(setting, optimizers, rows, **{**given, **options})


def test_a_row_is_trained_where_it_is_more_than_a_step():
    names = ("closed loop", "inverse law", "average of the weights")
    cells = tiny(*names).cells()
    clusters = {
        (cell.optimizer, rule): {c.cluster for c in cells if c[:2] == (cell[0], rule)}
        for cell in cells
        for rule in ("plain", *names)
    }
    late = {name for name in trials.clusters() if name != trials.NO_DELAY}
    assert clusters["sgd", "plain"] == {*late, trials.NO_DELAY}
    assert clusters["sgd", "average of the weights"] == {*late, trials.NO_DELAY}
    assert clusters["sgd", "closed loop"] == late
    assert clusters["adam", "closed loop"] == set()  # of SGD alone
    assert clusters["adam", "inverse law"] == {
        name for name in late if not name.startswith("constant")
    }
    # plain comes first: rules start from what it found
    rules = [cell.rule for cell in cells]
    assert rules[: rules.count("plain")] == ["plain"] * rules.count("plain")


def test_each_cell_is_in_one_shard_and_plain_where_it_is_needed():
    cells = tiny("clipping", "inverse law", "DC-ASGD-c", "Gap-Aware").cells()
    shards = [part(cells, number, 3) for number in (1, 2, 3)]
    rules = [cell for own in shards for cell in own if cell.rule != "plain"]
    assert sorted(rules) == sorted(cell for cell in cells if cell.rule != "plain")
    for own in shards:
        plain = {cell.optimizer for cell in own if cell.rule == "plain"}
        assert plain == {cell.optimizer for cell in own}
    assert part(cells, 1, 1) == cells


def test_a_rule_starts_from_plain_with_the_rule_off():
    cell = Cell("sgd", "DC-ASGD-c", "constant, 4", 0)
    asked = []
    made = tiny("DC-ASGD-c")

    def losses(setting, optimizer, cure, cluster):
        def of(points, seeds):
            asked.append((points, list(seeds)))
            return np.ones((len(points), len(seeds))) + points[:, :1]

        return of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "of_points", losses)
        row = made.run(cell, {"learning_rate": 0.3, "decay": 0.1})
    space = NAMED["DC-ASGD-c"].whole_space(cures.OPTIMIZERS["sgd"])
    known = [space["learning_rate"].share(0.3), 0.5, 0.0]  # its own number is off
    np.testing.assert_allclose(asked[0][0][-1], known)
    # the seeds that are reported are no search's
    assert max(asked[-2][1]) < min(asked[-1][1])
    assert row["confirmed"] == pytest.approx(1 + asked[-1][0][0, 0])


def test_a_table_that_was_cut_off_goes_on(tmp_path):
    made = tiny()
    cells = made.cells()[:3]
    whole = Stored(tmp_path / "whole.csv", "tiny, small")
    for cell in cells:
        whole.add(made.run(cell, None))
    text = whole.path.read_text()
    assert text.startswith("# tiny, small; jax ")
    # killed within the last row
    cut = Stored(tmp_path / "cut.csv", "tiny, small")
    cut.path.write_text(text[:-20])
    assert set(cut.done()) == set(cells[:2])
    assert cut.path.read_text() == text[:-20]  # another process may be writing
    cut.add(made.run(cells[2], None))
    assert cut.path.read_text() == text
    with pytest.raises(ValueError, match=r"must be a table of tiny, full, got 'tiny,"):
        Stored(cut.path, "tiny, full").read()
    numbers = cut.done()[cells[0]]
    assert set(numbers) == {"learning_rate", "decay"}


def test_what_is_reported_is_trained_with_the_numbers_of_the_table():
    made = tiny("DANA")
    cell = Cell("sgd", "DANA", "memoryless, 4", 1)
    row = made.run(cell, {"learning_rate": 0.3, "decay": 0.1})
    numbers = study.read_numbers(row["numbers"])
    again = [
        made.setting.losses(
            cures.OPTIMIZERS["sgd"],
            NAMED["DANA"],
            cell.cluster,
            {name: np.array([own]) for name, own in numbers.items()},
            seed,
        )[0]
        for seed in range(1_000_000, 1_000_003)
    ]
    reported = [row[f"loss_{i}"] for i in range(3)]
    np.testing.assert_allclose(reported, again, rtol=1e-5)


def test_a_size_decides_in_every_study():
    rows = cures.CURES
    for name, make in studies.STUDIES.items():
        small, full, large = (make(size, rows) for size in studies.SIZES)
        assert small.effort == studies.SHORT and small.searches == 2
        assert (full.searches, full.reporting) == (8 if name == "digits" else 4, 20)
        assert (large.searches, large.effort) == (16, full.effort)
    trainings = {
        effort: sum(r.points * r.seeds for r in effort.rounds)
        + (effort.finalists + 2) * effort.confirming
        for effort in (studies.WHOLE, studies.MEDIUM, studies.SHORT)
    }
    whole = trainings[studies.WHOLE]
    assert round(trainings[studies.MEDIUM] / whole, 2) == 0.43
    assert round(trainings[studies.SHORT] / whole, 2) == 0.27
