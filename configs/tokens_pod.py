"""Does a language model of 124 million parameters train on a pod with late gradients?

A decoder of GPT-2's smallest size trains on token shards of your own, in bfloat16, by
Adam with warm-up and cosine. Each device is a worker. Their mean gradient is used one
update late, so that it may be summed while the next gradient is computed. An update has
131,072 tokens, the run 2.5 billion, 20 for each parameter (Hoffmann et al.,
arXiv:2203.15556).

    python -m experiments.main --config=configs/tokens_pod.py --distributed \
        '--config.shards=/data/*.bin' --workdir=gs://bucket/tokens

on every host; `--config.exchange=mean` is the synchronous run to compare with. For
several slices set `--config.groups` to their number, and `--config.workers` to the
number of all devices: the workers of a slice average their gradients at once, and only
the means of slices are sent late, a share by each worker. With `--config.model=4` a
worker is four devices, each with a quarter of its parameters, optimizer state and
outbox. Shards are rows of little-endian uint16, on every host's disk.

Not run: we have no pod, so a wall time and an expected loss are missing. The program
was compiled (2026-11-23, libtpu 0.0.42.1) for a slice v5e:4x4: it needs 10.5 of the
15.75 GiB of a device. By estimate an update takes 141 ms there, and 142 with `mean`; on
eight H100 26.4 and 26.0. Lateness helps between slices, where links are slow.
docs/pods.md explains the estimate, and this command prints it for any one shard of at
least 2,050 tokens:

    python -m experiments.pods.compile_pod --config=configs/tokens_pod.py \
        '--config.shards=shard.bin' --topology=v5e:4x4
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, configs, figures, on_devices, tasks

WARMUP_UPDATES = 1000  # a tenth of a run of fewer than 10,000
EXCHANGES = {"mean": dj.exchange.mean, "overlapped_mean": dj.exchange.overlapped_mean}


LIMITS = configs.at_least(1, "width", "depth")
LIMITS |= configs.at_least(0, "workers")
LIMITS |= configs.positive("learning_rate")


def get_config() -> ConfigDict:
    """The config: one cell, a worker on each device."""
    return ConfigDict(
        dict(
            shards="/data/*.bin",  # a path or a pattern
            vocab=50304,  # GPT-2's 50,257, rounded up to a multiple of 128
            exchange="overlapped_mean",  # one update late; "mean" is not late
            workers=0,  # 0: the number of devices, over `model`
            groups=1,  # groups of workers that exchange means; one for each slice
            model=1,  # devices of a worker, which share its parameters
            batch_size=128,  # windows per update, of all workers
            context=1024,  # tokens
            width=768,
            depth=12,  # blocks
            heads=12,
            dtype="bfloat16",  # of activations and products
            learning_rate=6e-4,
            updates=19_000,
            evaluate_every=500,  # updates
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: one training."""
    exchange = configs.named("exchange", config.exchange, EXCHANGES)
    if config.groups > 1 and not config.workers:
        raise ValueError(
            f"`workers` must be given with `groups={config.groups}`: a group has"
            " workers / groups members."
        )
    warmup = min(WARMUP_UPDATES, config.updates // 10)
    rate = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, warmup, config.updates
    )
    server = optax.adam(rate, b2=0.95)

    def make():
        if config.groups == 1:
            return exchange(server)
        if exchange is dj.exchange.mean:
            return exchange(server, axis_name=("groups", "members"))
        members = config.workers // config.groups
        return dj.exchange.late_between_groups(server, members)

    sizes = ("vocab", "batch_size", "context", "width", "depth", "heads", "dtype")
    return Experiment(
        question="Does a language model train on a pod with late gradients?",
        task=tasks.tokens(config.shards, **{size: config[size] for size in sizes}),
        training=on_devices(
            make,
            workers=config.workers or None,
            groups=config.groups,
            model=config.model,
        ),
        seeds=1,
        updates=config.updates,
        evaluate_every=config.evaluate_every,
        figures=[
            figures.curves("train_loss"),
            figures.curves("test_loss"),
        ],
    )
