"""The records of a run over delays, made by hand."""

import csv
import itertools
import json
import math

from experiments import results
from experiments.figures import run

RATES, DELAYS, SEEDS = (0.03, 0.1, 0.3, 1.0, 3.0), (0, 1, 4), (0, 1, 2)
SHARPNESS, OPTIMUM = 1.5, 0.05


def limit(delay):
    """The closed form, term by term."""
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / SHARPNESS


def record(optimizer, rate, delay, seed, train_loss, *, test_loss=None, **changes):
    diverged = int(math.isnan(train_loss))
    return {
        "task": "breast_cancer",
        "optimizer": optimizer,
        "learning_rate": rate,
        "delay_law": "constant",
        "delay": delay,
        "modulation": "none",
        "placement": "after",
        "compensation": "none",
        "strength": 0.0,
        "seed": seed,
        "steps": 600,
        "diverged": diverged,
        "diverged_step": 17 if diverged else -1,
        "train_loss": train_loss,
        "test_loss": train_loss + 0.1 if test_loss is None else test_loss,
        "train_accuracy": math.exp(-train_loss),
        "test_accuracy": math.exp(-train_loss) / 2,
        "staleness_mean": delay,
        "staleness_p99": delay,
        "staleness_max": delay,
        "clipped": 0.0,
        "dropped": 0.0,
    } | changes


def valley(rate, delay, seed):
    """Best at a step that shrinks with the delay; diverged beyond the limit."""
    if rate > limit(delay):
        return math.nan
    return 0.1 + 0.02 * delay + 0.01 * seed + math.log(rate * (1 + delay)) ** 2 / 10


def grid(optimizer="sgd", loss=valley, **changes):
    return [
        record(optimizer, rate, delay, seed, loss(rate, delay, seed), **changes)
        for rate, delay, seed in itertools.product(RATES, DELAYS, SEEDS)
    ]


def limits(*series):
    """As config.json has them, of each series that is given by what it is."""
    return [
        {
            "series": {
                **{"optimizer": "sgd", "delay_law": "constant", "modulation": "none"},
                **{"placement": "after", "compensation": "none", "strength": 0.0},
                **{"arm": "", **own},
            },
            **{"delay": delay, "step": limit(delay), "sharpness": SHARPNESS},
        }
        for own in series
        for delay in DELAYS
    ]


def drawn_limits(*series):
    """The same, as figures take them."""
    return run.limits_of(limits(*series))


def workdir(folder, records, *, names=("over_delay",), facts=None, limits=(), **config):
    """A run's folder in the documented form."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    opt = {"decay": "constant", "warmup_steps": 0, "sgd": {"momentum": 0.0}}
    settings = {
        "task": {"name": "breast_cancer"},
        "opt": opt,
        "metric": "test_loss",
        "select_by": "train_loss",
        "figures": names,
    } | config
    facts = facts or {"sharpness": SHARPNESS, "optimum_loss": OPTIMUM}
    (folder / "config.json").write_text(
        json.dumps({"config": settings, "facts": facts, "limits": limits})
    )
    with (folder / "metrics.jsonl").open("w") as file:
        for row in progress():
            file.write(json.dumps(row) + "\n")
    return folder


def progress():
    return [
        {
            "program": program,
            "step": step,
            "train_loss": None if step == 30 else 5.0 / step + offset,
            "not_finite": step // 10,
        }
        for offset, program in enumerate(("sgd-none-after", "sgd-none-before"))
        for step in (10, 20, 30, 40)
    ]


def rows_of(folder, records):
    return results.read(workdir(folder, records) / "results.csv")


def plateau(rate, delay, seed):
    """Settled up to the limit; beyond it bounded, and diverged beyond thrice it."""
    ratio = rate / limit(delay)
    return OPTIMUM + 1e-7 if ratio <= 1 else OPTIMUM + 0.3 if ratio <= 3 else math.nan


def two_runs(folder):
    """A map of plain SGD, and a language model under three optimizers."""
    edge = workdir(folder / "edge", grid(), limits=limits({}))
    records = [row for name in ("sgd", "adam", "muon") for row in grid(name)]
    language = workdir(folder / "lm", records, task={"name": "char_lm"})
    return edge, language
