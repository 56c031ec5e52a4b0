"""Rows of metrics.jsonl: no row is lost, and no row is there twice."""

from experiments.host.folder import RunFolder


def row(step, program="all"):
    return {"program": program, "step": step, "losses": [[1.0, None]]}


def opened(path, kept=0, program="all"):
    folder = RunFolder(path)
    folder.cut_rows_after(program, kept)
    return folder


def test_the_metrics_of_a_resumed_run_end_as_if_uninterrupted(tmp_path):
    def rows(path, resumed_at):
        for kept, steps in resumed_at:
            metrics = opened(path, kept)
            for step in steps:
                metrics.add_row(row(step))
        return (path / "metrics.jsonl").read_text()

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole = rows(tmp_path / "a", [(0, (0, 10, 20, 30, 40))])
    broken = tmp_path / "b"
    # it was killed before its first checkpoint, and begins again
    rows(broken, [(0, (0, 10)), (0, (0, 10, 20, 30))])
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"program": "al')  # it was killed while it wrote a line
    assert rows(broken, [(20, (30, 40))]) == whole


def test_a_line_that_cannot_be_read_costs_itself_alone(tmp_path, caplog):
    lines = ['{"program": "a", "step": 1}', "{", "[]", '{"step": 2}']
    text = "\n".join([*lines, '{"program": "a", "step": 3}', ""])
    (tmp_path / "metrics.jsonl").write_text(text)
    with caplog.at_level("WARNING", logger="experiments"):
        rows = RunFolder(tmp_path).rows()
    assert [row["step"] for row in rows] == [1, 3]
    assert "3 lines cannot be read and are left out" in caplog.text


def test_the_rows_of_other_programs_stay(tmp_path):
    for name in ("all", "other", "all"):  # the first program begins again
        metrics = opened(tmp_path, program=name)
        metrics.add_row(row(10, name))
        assert metrics.rows(name) == [row(10, name)]
    assert [row["program"] for row in RunFolder(tmp_path).rows()] == ["other", "all"]
