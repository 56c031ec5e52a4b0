"""Are late gradients a good stand-in for what a pipeline computes?

A Transformer of 8 blocks on the characters of Python's manual runs in 2 and in 8 stages
that never wait: stage s of S has gradients S - 1 - s updates old. A pipeline that
stashes old weights computes a gradient at mixed versions of the weights
(`dj.pipelines.mixed`). Studies often simulate it by a gradient at one version, of which
each stage uses its part later (`late`), or by one delay of S - 1 updates for all stages
(`vertical_sync`, which PipeDream offers too). Step and momentum (beta_1 of Adam, beta
of Muon) are tuned for each. Runs are short: only Muon without delay comes near 2.46
nats, the entropy of a character given the character before it. On an H200 it took 4
minutes, with its 21 programs in seven processes side by side. Two CPU cores need about
four hours, and 71 minutes for `--config.seeds=8 --config.tuning_seeds=3`.

    python -m experiments.main --config=configs/late_or_mixed.py \
        --workdir=runs/late_or_mixed
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, amount, figures, pipelined, tasks
from experiments.configs import at_least, below_one, check_warmup, positive
from experiments.training.late_stages import OPTIMIZERS

SMALL = {"updates": 60, "momentum": (0.0, 0.5)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(1, "width", "depth")
LIMITS |= at_least(0, "warmup_updates")
LIMITS |= positive("sgd_rate", "adam_rate", "muon_rate")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """The config: a model so small that one core can train a thousand of them."""
    return ConfigDict(
        dict(
            stages=(2, 8),  # of `depth` blocks
            sgd_rate=(0.03, 0.1, 0.3, 1.0, 3.0),
            adam_rate=(0.001, 0.003, 0.01, 0.03, 0.1),
            muon_rate=(0.005, 0.015, 0.05, 0.15),
            momentum=(0.0, 0.5, 0.9),
            warmup_updates=25,  # then a cosine to zero
            batch_size=4,  # windows per update
            context=16,  # characters
            width=16,
            depth=8,  # blocks
            updates=250,
            seeds=32,
            tuning_seeds=8,  # seeds that choose step and momentum; not reported
        )
    )


PIPELINES = {
    "mixed": dj.pipelines.mixed,
    "late": dj.pipelines.late,
    "vertical sync": dj.pipelines.vertical_sync,
}


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: no delay, and three pipelines, with each optimizer."""
    check_warmup(config)
    ends = config.warmup_updates, config.updates
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, *ends)

    def arm(name, kind, **late):
        pipeline = PIPELINES.get(kind, dj.pipelines.mixed)

        def make(parts, learning_rate, momentum, stages=1):
            tx = OPTIMIZERS[name](lambda step: learning_rate * shape(step), momentum)
            return pipeline(parts, tx, dj.pipelines.pipedream(stages))

        return Arm(
            training=pipelined(make),
            labels={"optimizer": name, "gradients": kind},
            grid={"learning_rate": config[f"{name}_rate"], **late},
        )

    def arms_of(name):
        late = [arm(name, kind, stages=config.stages) for kind in PIPELINES]
        return [arm(name, "one stage"), *late]

    def nats(said, against, *kinds):
        return Effect(
            metric="test_loss",
            against=against,
            size=amount(0.02, "nats"),
            where={"gradients": kinds},
            name=f"held-out loss{said}",
        )

    shown = dict(panels="optimizer", color="gradients")
    return Experiment(
        question="Are late gradients a good stand-in for what a pipeline computes?",
        task=tasks.char_lm(
            batch_size=config.batch_size,
            context=config.context,
            width=config.width,
            depth=config.depth,
            evaluated_tokens=2048,
            in_parts=True,
        ),
        arms=[arm for name in ("sgd", "adam", "muon") for arm in arms_of(name)],
        grid={"momentum": config.momentum},
        static=("stages",),
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=4,
        answer=[
            nats("", {"gradients": "mixed"}, *PIPELINES),
            nats(
                " at mixed versions", {"gradients": "one stage"}, "one stage", "mixed"
            ),
        ],
        figures=[
            figures.over("stages", "test_loss", fixed=False, **shown),
            figures.best_step("stages", **shown),
            figures.best_step("stages", "momentum", **shown),
        ],
    )
