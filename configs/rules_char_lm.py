"""Which rule for stale gradients is worth its cost on a language model?

The rules of `configs/rules_digits.py` on a Transformer that predicts the characters of
Python's own documentation, with a warm-up and a cosine decay of the learning rate. What
is compared is the loss on held-out text.

    python -m experiments.main --config=configs/rules_char_lm.py --workdir=runs/rules_lm
    python -m experiments.main --config=configs/rules_char_lm.py:large \
        --workdir=runs/rules_lm_large

The first takes 15 minutes on two cores, the second a night on a GPU.
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from experiments import Experiment, configs, tasks
from experiments.comparison import Comparison, clusters, cures


def get_config(size: str = "small") -> ConfigDict:
    """One delay and a small model, or all.

    Args:
        size: "small" or "large".
    """
    large = configs.is_large(size)
    return ConfigDict(
        dict(
            delay=(1, 2, 4, 8, 16, 32) if large else (8,),  # mean, updates
            trials=12 if large else 6,  # of each rule on each cluster
            optimizers=("sgd", "adam", "muon"),
            sgd_learning_rate=(0.003, 1.0),  # the smallest and the largest
            adam_learning_rate=(0.001, 0.1),
            muon_learning_rate=(0.002, 0.2),
            slowest=5.0,  # times slower than the others, the straggler
            warmup_updates=50,  # then a cosine to zero
            batch_size=16 if large else 4,  # windows a gradient
            context=64 if large else 16,  # characters
            width=32,
            depth=2 if large else 1,  # blocks
            evaluated_tokens=12_288 if large else 4_096,  # characters of each text
            updates=2000 if large else 300,
            seeds=5,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """A program for each optimizer and rule."""
    rates = {name: config[f"{name}_learning_rate"] for name in config.optimizers}
    cosine = optax.cosine_decay_schedule(1.0, config.updates)

    def shape(count):
        return jnp.minimum(1, (count + 1) / config.warmup_updates) * cosine(count)

    comparison = Comparison(
        task=tasks.char_lm(
            batch_size=config.batch_size,
            context=config.context,
            width=config.width,
            depth=config.depth,
            evaluated_tokens=config.evaluated_tokens,
        ),
        optimizers=cures.optimizers(**rates),
        clusters=clusters(config.delay, slowest=config.slowest),
        trials=config.trials,
        shape=shape,
        metric="test_loss",
    )

    return comparison.experiment(
        question="Which rule for stale gradients helps a language model?",
        seeds=config.seeds,
        updates=config.updates,
        claims=[
            comparison.cost("sgd", about=0.35, within=0.07),
            comparison.cost("adam", about=0.34, within=0.07),
            comparison.cost("muon", about=0.23, within=0.05),
        ],
        notes=(
            "Momentum is not tuned, so a share of what is won back says nothing about"
            " a rule yet: a fair comparison is being made."
        ),
    )
