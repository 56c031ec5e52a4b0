"""What do late stages cost SGD, Adam and Muon, and which cures help?

A Transformer of 8 blocks on the characters of the standard library's own manual, in
stages that never wait: stage s of S has gradients S - 1 - s updates old. Without a
stash ("plain") a backward pass reads other weights than its forward pass. The cures:

- stash: the backward pass reads the weights of its forward pass (PipeDream);
- prediction: a stash, and the forward pass reads x + delay * (last change of x);
- PipeMare: no stash, but its rules T1 and T2, with the delays of all other methods;
- look-ahead: NAdam with a stash. The share of momentum in its step rises as in 50,000
  updates of the source: `momentum_decay` is 200 over the updates of this run;
- rotation: Adam in the eigenvectors of each matrix of the blocks, with a stash.

The last two are optimizers, and are trained in one stage too. Step and momentum are
tuned for each optimizer, method and number of stages. Runs are short: only Muon comes
near 2.46 nats, the entropy of a character given the character before it. On an H200 it
takes 6 minutes, with the same losses as on a CPU (to 1e-6 nats at small steps).

    python -m experiments.main --config=configs/pipeline_char_lm.py \
        --workdir=runs/pipeline_char_lm

`configs/pipeline_tokens.py` trains one of the methods on tokens of your own.
"""

import optax
from ml_collections import ConfigDict

from experiments import Arm, Effect, Experiment, amount, configs, figures, tasks
from experiments.training.late_stages import OF_ADAM, late_stages

SMALL = {"updates": 60, "stages": (8,), "momentum": (0.5,), "sgd_rate": (0.5,)}
SMALL |= {"adam_rate": (0.01, 0.03), "muon_rate": (0.05,)}
SMALL |= {"look_ahead_momentum": (0.9,)}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = configs.at_least(1, "width", "depth", "stages")
LIMITS |= configs.at_least(0, "warmup_updates")
LIMITS |= configs.positive("adam_rate", "muon_rate", "sgd_rate")
LIMITS |= configs.below_one("look_ahead_momentum", "momentum")


def get_config() -> ConfigDict:
    """The config: all methods on characters."""
    return ConfigDict(
        dict(
            stages=(2, 4, 8),  # of `depth` blocks
            adam_rate=(0.003, 0.01, 0.03, 0.1),
            muon_rate=(0.015, 0.05, 0.15),
            sgd_rate=(0.05, 0.15, 0.5, 1.5),
            momentum=(0.0, 0.5, 0.9),
            look_ahead_momentum=(0.0, 0.5, 0.9, 0.99),
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


METHODS = {
    "adam": ("stash", "prediction", "plain", "PipeMare", "look-ahead", "rotation"),
    "muon": ("stash", "prediction", "plain", "PipeMare"),
    "sgd": ("stash", "prediction"),
}
ONE = "one stage"
SIZES = ("batch_size", "context", "width", "depth")


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each optimizer, method and number of stages."""
    configs.check_warmup(config)
    most = max(config.stages)
    if most > config.depth:
        raise ValueError(
            f"config.stages must hold numbers up to config.depth = {config.depth}, the"
            f" blocks that they share, got {most}."
        )

    ends = config.warmup_updates, config.updates
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, *ends)

    def arm(name, method):
        ahead = method == "look-ahead"
        grid = {
            "learning_rate": config[f"{name}_rate"],
            "momentum": config.look_ahead_momentum if ahead else config.momentum,
        }
        stages = (1, *config.stages) if method in OF_ADAM else config.stages
        grid |= {} if method == ONE else {"stages": stages}
        cure = "stash" if method == ONE else method
        return Arm(
            training=late_stages(name, cure, config.updates, shape),
            labels={"optimizer": name, "method": method},
            grid=grid,
        )

    def nats(against, *methods, stages=most, said=""):
        return Effect(
            metric="test_loss",
            against=against,
            size=amount(0.02, "nats"),
            where={"method": methods, "stages": (stages, most)},
            name=f"held-out loss in {most} stages{said}",
        )

    shown = dict(panels="optimizer", color="method")
    return Experiment(
        question="What do late stages cost SGD, Adam and Muon, and which cures help?",
        task=tasks.char_lm(
            **{key: config[key] for key in SIZES}, evaluated_tokens=2048, in_parts=True
        ),
        arms=[
            arm(name, stages) for name in METHODS for stages in (ONE, *METHODS[name])
        ],
        static=("stages",),
        seeds=config.seeds,
        tuned=("learning_rate", "momentum"),
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluations=25,
        answer=[
            nats({"method": ONE}, ONE, "plain", "stash", stages=None),
            nats({"method": "stash"}, *METHODS["adam"]),
            nats({"stages": 1}, *OF_ADAM, stages=1),
        ],
        figures=[
            figures.over("stages", "test_loss", fixed=False, **shown),
            figures.best_step("stages", **shown),
            figures.best_step("stages", "momentum", **shown),
        ],
    )
