"""Does a language model of 124 million parameters train on a pod with late gradients?

A decoder of GPT-2's smallest size on token shards of your own, in bfloat16, Adam with
warm-up and cosine; 16 workers whose mean gradient is used one update late, so that its
sums may travel while the next gradient is computed. 131,072 tokens an update and 2.5
billion in all, 20 for each parameter (Hoffmann et al., arXiv:2203.15556).

    python -m experiments.main --config=configs/tokens_pod.py --distributed \
        '--config.task.name=tokens:/data/*.bin' --workdir=gs://bucket/tokens

on every host; `--config.exchange=mean` is the synchronous run to compare it with.
Shards are rows of little-endian uint16, on every host's disk.

Not run: nothing here has a pod, so that there is neither a wall time nor an expected
loss. Compiled only (2026-11-21, libtpu 0.0.42.1), on any one shard of at least 2,050
tokens, for 16 chips, of whose 15.75 GiB it needs 10.8:

    python -m experiments.compile_pod --config=configs/tokens_pod.py \
        '--config.task.name=tokens:shard.bin' --topology=v5e:4x4
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """One cell, one worker a device; any number of devices that divides 16 will do."""
    config = default.get_config()
    config.task.name = "tokens:/data/*.bin"
    config.task.vocab = 50304  # GPT-2's 50,257, rounded up to a multiple of 128
    config.task.context = 1024
    config.task.width = 768
    config.task.depth = 12
    config.task.heads = 12
    config.task.batch_size = 128  # 8 windows a worker
    config.task.dtype = "bfloat16"
    config.opt.name = ("adam",)
    config.opt.adam.learning_rate = (6e-4,)
    config.opt.adam.b2 = 0.95
    config.opt.warmup_steps = 1000
    config.opt.decay = "cosine"
    config.delay.value = (0,)
    config.execution = "run"
    config.mesh.workers = 16
    config.exchange = "overlapped_mean"
    config.seeds = (0,)
    config.steps = 19_000
    config.chunk = 50
    config.checkpoint_every = 1000
    config.metric = "test_loss"
    config.figures = ("loss_curves",)
    config.expected = ConfigDict()
    return config
