"""Figures of a run, drawn from its records; nothing trains here."""

from pathlib import Path

from matplotlib.figure import Figure

from experiments import results, tuning
from experiments.figures import look, loss_curves, over_delay, stability_map
from experiments.figures.run import Run, load

_TUNED = ("over_delay", "gap_over_delay", "best_step")


def draw(workdir: Path | str) -> list[Path]:
    """Draws the figures that the config of a run asks for.

    Args:
        workdir: a run's folder, with config.json, metrics.jsonl and results.csv.

    Returns:
        The files, figures/NAME.png. A figure of what the run does not record is left
        out, and `warnings` says so.

    Raises:
        FileNotFoundError: if a record is missing.
        ValueError: if a figure is unknown or a record cannot be read.
    """
    run = load(workdir)
    return [
        look.save(_figure(run, name), Path(workdir) / "figures" / f"{name}.png")
        for name in run.config["figures"]
        if not _lacking(run, name)
    ]


def warnings(workdir: Path | str) -> list[str]:
    """What makes the figures of a run unfair, or leaves one out, in sentences."""
    run = load(workdir)
    names = run.config["figures"]
    sentences = []
    if set(names) & set(_TUNED):
        sentences += tuning.edge_warnings(run.curves("train_loss"))
    return sentences + [text for name in names if (text := _lacking(run, name))]


def _lacking(run: Run, name: str) -> str:
    """Why a figure cannot be drawn; empty if it can."""
    needs = {"over_delay": run.config["metric"], "gap_over_delay": "gap"}
    if name in needs and not results.recorded(run.rows, needs[name]):
        return (
            f"{name} is not drawn: the task records no {results.METRICS[needs[name]]};"
            " name another in config.metric, or leave the figure out of config.figures."
        )
    if name == "loss_curves" and not run.metrics:
        return "loss_curves is not drawn: there is no row in metrics.jsonl."
    return ""


def _figure(run: Run, name: str) -> Figure:
    match name:
        case "over_delay":
            return over_delay.metric(run.curves(run.config["metric"]), run.unit)
        case "gap_over_delay":
            return over_delay.gap(run.curves("gap"), run.unit)
        case "best_step":
            return over_delay.best_step(run.curves("train_loss"))
        case "stability_map":
            return stability_map.draw(
                run.rows,
                stability_map.sharpness(run),
                run.facts.get("optimum_loss"),
                run.unit,
            )
        case "loss_curves":
            return loss_curves.draw(run.metrics, run.unit)
    raise ValueError(f"unknown figure {name!r}.")
