"""Figures of a run, drawn from its records; nothing trains here."""

from pathlib import Path

from matplotlib.figure import Figure

from experiments import results, theory, tuning
from experiments.arms import options
from experiments.figures import (
    arms,
    decay_rate,
    gantt,
    look,
    loss_curves,
    noise_floor,
    over_delay,
    over_option,
    over_time,
    stability_map,
    staleness,
    update_times,
)
from experiments.figures.run import Run, load

_OVER = {"over_seconds": "seconds", "over_updates": "step", "over_examples": "examples"}
_TUNED = (
    *("over_delay", "gap_over_delay", "best_step"),
    *(*_OVER, "arms", "over_option"),
)
_TRACED = ("staleness", "update_times", "gantt")


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
    metric, task = run.config["metric"], run.config["task"]
    needs = dict.fromkeys(("over_delay", "arms", "over_option"), metric)
    needs["gap_over_delay"] = "gap"
    needs |= dict.fromkeys(_OVER, _shown_on_the_way(run))
    if name in results.ARM_FIGURES and not run.arms:
        reason = "the run has no config.cluster.arms; leave it out of config.figures."
    elif name in needs and not results.recorded(run.rows, needs[name]):
        reason = (
            f"the task records no {results.METRICS[needs[name]]}; name another in"
            " config.metric, or leave the figure out of config.figures."
        )
    elif name == "loss_curves" and not run.metrics:
        reason = "there is no row in metrics.jsonl."
    elif name in (*_OVER, "decay_rate") and not run.has_evaluations:
        reason = "curves.csv is missing."
    elif name == "decay_rate" and (task["name"] != "quadratic" or task["noise"]):
        reason = (
            "an error dies out for good only where config.task.name='quadratic' and"
            " config.task.noise=0."
        )
    elif name == "noise_floor" and not noise_floor.arrange(run.rows, run.config):
        reason = (
            "theory is of the task quadratic with config.task.noise above 0, under SGD"
            " of a constant step size at constant delays alone."
        )
    elif name in _TRACED and (missing := run.missing_trace):
        reason = f"{missing} is missing."
    else:
        return ""
    return f"{name} is not drawn: {reason}"


def _figure(run: Run, name: str) -> Figure:
    config = run.config
    match name:
        case "over_delay":
            return over_delay.metric(run.curves(config["metric"]), run.unit)
        case "gap_over_delay":
            return over_delay.gap(run.curves("gap"), run.unit)
        case "best_step":
            return over_delay.best_step(run.curves("train_loss"), run.limits)
        case "stability_map":
            return stability_map.draw(
                run.rows,
                run.limits,
                run.facts.get("optimum_loss"),
                run.unit,
            )
        case "noise_floor":
            return noise_floor.draw(noise_floor.arrange(run.rows, config), config)
        case "loss_curves":
            return loss_curves.draw(run.metrics, run.unit)
        case "over_seconds" | "over_updates" | "over_examples":
            metric, target = _shown_on_the_way(run), config["target"]
            marked = target["value"] if target["metric"] == metric else 0.0
            return over_time.draw(
                run.curves(config["select_by"]),
                run.evaluations,
                metric,
                run.unit,
                against=_OVER[name],
                target=marked or None,
            )
        case "arms":
            return arms.draw(run.curves(config["metric"]), run.unit)
        case "staleness":
            return staleness.draw(run.traces, run.theory(theory.mean_staleness))
        case "update_times":
            return update_times.draw(run.traces, run.theory(theory.update_seconds))
        case "gantt":
            return gantt.draw(run.traces)
        case "over_option":
            metric, target = config["metric"], config["target"]
            words = f"{results.METRICS[target['metric']]} of {target['value']:g}"
            return over_option.draw(
                run.curves(metric),
                {arm: options(arm, config) for arm in run.arms},
                **config["over"],
                target=words if metric == "seconds_to_target" else "",
                unit=run.unit,
            )
        case "decay_rate":
            return decay_rate.draw(decay_rate.arrange(run.evaluations, config))
    raise ValueError(f"unknown figure {name!r}.")


def _shown_on_the_way(run: Run) -> str:
    """The metric of figures over time: a time is no metric of parameters."""
    metric = run.config["metric"]
    return run.config["target"]["metric"] if metric == "seconds_to_target" else metric
