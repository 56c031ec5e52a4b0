"""What do 32 late stages cost a language model?

One of the methods of `configs/pipeline_char_lm.py` in 32 stages of a block each,
simulated on one GPU, on token shards of your own (little-endian uint16;
docs/experiments.md): 26 million parameters with a width of 160, 122 million with
`--config.width=448 --config.heads=7`. `--dry_run` prints its memory before it runs. We
ran 60 updates of 26 million parameters on an H200 with random tokens: compiled in 68 s,
then 26 updates per second (20,000 take 13 minutes), with 6.3 GiB in use, as predicted.

    python -m experiments.main --config=configs/pipeline_tokens.py \
        '--config.shards=/data/*.bin' --workdir=runs/large --dry_run
"""

import optax
from ml_collections import ConfigDict

from experiments import Experiment, configs, figures, tasks
from experiments.training import late_stages

LIMITS = configs.at_least(1, "width", "stages")
LIMITS |= configs.at_least(0, "warmup_updates")
LIMITS |= configs.positive("learning_rate")
LIMITS |= configs.below_one("momentum")


def get_config() -> ConfigDict:
    """The config: one method in 32 stages, on tokens."""
    return ConfigDict(
        dict(
            shards="/data/*.bin",  # a path or a pattern
            vocab=50304,  # GPT-2's 50,257, rounded up to a multiple of 128
            optimizer="adam",  # or sgd, muon
            method="stash",  # or plain, PipeMare, prediction, look-ahead, rotation
            stages=32,  # each with one block
            batch_size=8,  # windows per update
            context=512,  # tokens
            width=160,
            heads=5,
            dtype="bfloat16",  # of activations and products
            learning_rate=1e-3,
            momentum=0.9,
            warmup_updates=1000,  # then a cosine to zero
            updates=20_000,
            evaluate_every=500,  # updates
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: one cell."""
    configs.check_warmup(config)
    configs.named("optimizer", config.optimizer, late_stages.OPTIMIZERS)
    configs.named("method", config.method, late_stages.METHODS)
    ends = config.warmup_updates, config.updates
    shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, *ends)
    sizes = ("vocab", "batch_size", "context", "width", "heads", "dtype")
    return Experiment(
        question="What do 32 late stages cost a language model?",
        task=tasks.tokens(
            config.shards,
            depth=config.stages,
            in_parts=True,
            **{size: config[size] for size in sizes},
        ),
        training=late_stages.late_stages(
            config.optimizer, config.method, config.updates, shape
        ),
        grid={key: (config[key],) for key in ("learning_rate", "momentum", "stages")},
        static=("stages",),
        seeds=1,
        updates=config.updates,
        evaluate_every=config.evaluate_every,
        figures=[figures.curves("train_loss"), figures.curves("test_loss")],
    )
