"""Are late gradients a good stand-in for what a pipeline computes?

A Transformer on the characters of the standard library's own manual, a block on each
of six stages that never wait, so that stage s has gradients 5 - s updates old. A
pipeline computes a gradient at mixed versions (`dj.pipelines.mixed`), with old weights
stashed or not. Studies often simulate it by a gradient at one version, of which each
stage uses its part later (`late`), or by one delay of 5 everywhere ("uniform"): that is
PipeDream's vertical sync, but for which batch a gradient is of. Step and momentum
(beta_1 of Adam, beta of Muon) are tuned for each. Runs are short: only Muon without
delay ends below the entropy of a character given the one before it, 2.46 nats.

    python -m experiments.main --config=configs/late_or_mixed.py \
        --workdir=runs/late_or_mixed
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Experiment, Published, Record, figures, pipelined, tasks
from experiments.results.estimates import Measure
from experiments.results.measures import between, difference, ratio, tuned
from experiments.results.tables import Found
from experiments.tasks import stacked


def get_config() -> ConfigDict:
    """Small enough for a thousand of them to train on one core."""
    return ConfigDict(
        dict(
            stages=6,  # each with one block
            sgd_rate=(0.1, 0.3, 1.0, 3.0),
            adam_rate=(0.003, 0.01, 0.03, 0.1),
            muon_rate=(0.005, 0.015, 0.05, 0.15),
            momentum=(0.5, 0.9),
            warmup_updates=25,  # then a cosine to zero
            batch_size=4,  # windows an update
            context=16,  # characters
            width=16,
            updates=250,
            seeds=5,
            tuning_seeds=3,  # that choose step and momentum
        )
    )


OPTIMIZERS = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "muon": lambda rate, beta: optax.contrib.muon(
        rate,
        beta=beta,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=stacked.matrices,
    ),
}
KINDS = ("undelayed", "late", "mixed", "no stash", "uniform")


def pipeline(kind: str, parts, tx, stages: int) -> dj.pipelines.Pipeline:
    """The training step of one kind."""
    schedule = dj.pipelines.pipedream(stages, stash=kind != "no stash")
    match kind:
        case "mixed" | "no stash":
            return dj.pipelines.mixed(parts, tx, schedule)
        case "late":
            return dj.pipelines.late(parts, tx, schedule)
    # one delay, of one stage that holds the whole model
    late = dj.delayed(tx, stages - 1 if kind == "uniform" else 0)
    return dj.pipelines.mixed(parts, late, dj.pipelines.pipedream(1))


def experiment(config: ConfigDict) -> Experiment:
    """Fifteen arms."""
    ends = config.warmup_updates, config.updates
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, *ends)

    def arm(name, kind):
        def make(parts, learning_rate, momentum):
            tx = OPTIMIZERS[name](lambda step: learning_rate * shape(step), momentum)
            return pipeline(kind, parts, tx, config.stages)

        return Arm(
            training=pipelined(make),
            labels={"optimizer": name, "gradients": kind},
            grid={"learning_rate": config[f"{name}_rate"]},
        )

    steps = dict(panels="optimizer", color="gradients")
    return Experiment(
        question="Are late gradients a good stand-in for what a pipeline computes?",
        task=tasks.char_lm(
            batch_size=config.batch_size,
            context=config.context,
            width=config.width,
            depth=config.stages,
            evaluated_tokens=2048,
            in_parts=True,
        ),
        arms=[arm(name, kind) for name in OPTIMIZERS for kind in KINDS],
        grid={"momentum": config.momentum},
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=4,
        answer=answer,
        published=published(config),
        records=records(config),
        figures=[
            figures.over(
                "gradients",
                "test_loss",
                color="optimizer",
                fixed=False,
                title="Do late gradients end where mixed versions end?",
            ),
            figures.over("learning_rate", "test_loss", fixed=False, **steps),
        ],
    )


def loss(name: str, kind: str) -> Measure:
    """Held-out loss in nats a character, at the best step and momentum."""
    return tuned("test_loss", optimizer=name, gradients=kind)


def beside(name: str, kind: str, other: str = "undelayed") -> Measure:
    """The loss with one kind of gradients less the loss with another."""
    return difference(loss(name, kind), loss(name, other))


def published(config: ConfigDict) -> list[Published]:
    """What the Marin project saw; no paper says how far `late` is from `mixed`."""
    del config
    return [
        Published(
            text="A uniform delay overstates threefold what late stages cost Muon",
            source="Marin project, issue 6431 of its repository (a program, no paper)",
            said="a loss gap of 0.086 with delays 5 .. 0 by stage, of 0.282 with 5",
            setting="a mixture of experts, width 512, 6000 steps, step not tuned",
            measure=ratio(beside("muon", "uniform"), beside("muon", "late")),
            at_least=2.0,
            bound_is_ours=True,
        )
    ]


def records(config: ConfigDict) -> list[Record]:
    """Losses at mixed versions."""
    del config
    known = {"sgd": (2.983, 0.03), "adam": (2.915, 0.053), "muon": (2.656, 0.064)}
    return [
        Record(f"Loss of {name}, mixed", loss(name, "mixed"), *known[name])
        for name in OPTIMIZERS
    ]


def answer(found: Found) -> str:
    """How far each simulation is from the pipeline, and what the pipeline costs."""

    def nats(kind, other="mixed"):
        shown = dict(same=0.0, form="+.3f")
        pairs = {name: beside(name, kind, other) for name in OPTIMIZERS}
        parts = [
            f"{name} {between(own, found, **shown)}" for name, own in pairs.items()
        ]
        return ", ".join(parts)

    return (
        "Held-out loss in nats a character, each with its own step and momentum. Mixed"
        f" versions less no delay: {nats('mixed', 'undelayed')}. Late gradients less"
        f" mixed versions: {nats('late')}. A uniform delay less these:"
        f" {nats('uniform')}. No stash less these: {nats('no stash')}."
    )
