"""What does one update of delay cost ResNet-50 on ImageNet, on a pod?

ResNet-50 with GroupNorm (He et al., arXiv:1512.03385; Wu and He, arXiv:1803.08494) in
bfloat16, random crops and mirrored images, SGD with Nesterov momentum, 90 epochs of
1,024 images per update. Each device is a worker, and their mean gradient is used one
update late. Step size and warm-up follow Goyal et al. (arXiv:1706.02677). There is no
weight decay, so do not expect their accuracy.

    python -m experiments.main --config=configs/imagenet.py --distributed \
        --config.data_dir=/data --workdir=gs://bucket/imagenet

on every host, with the set as array_record under /data: `tasks.images` says how.
`--config.exchange=mean` is the synchronous run to compare with. Only 445 images of the
training set and 445 of the validation set are evaluated, as many as the program holds;
so an accuracy is known to about 2 points.

Not run: we have neither a pod nor ImageNet, so a wall time and an expected accuracy are
missing. With images of 32 pixels four updates were trained on two CPU devices. With
other photographs the program was compiled (2026-11-23, libtpu 0.0.42.1) for a slice
v5e:4x4: it needs 3.5 of the 15.75 GiB of a device. All 102 MB of gradients are sent
beside enough computation for the links' published 100 GB/s: by estimate sending takes
1.9 ms of an update of 42 ms. `compile_pod` (docs/pods.md) prints such figures.
"""

import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, configs, figures, on_devices, tasks

EXCHANGES = {"mean": dj.exchange.mean, "overlapped_mean": dj.exchange.overlapped_mean}


LIMITS = configs.at_least(0, "workers", "warmup_updates")
LIMITS |= configs.positive("learning_rate")
LIMITS |= configs.below_one("momentum")


def get_config() -> ConfigDict:
    """The config: one cell, a worker on each device; their number must divide 16."""
    return ConfigDict(
        dict(
            dataset="imagenet2012",  # of TFDS
            data_dir="",  # the folder of prepared sets; "" is TFDS's default
            exchange="overlapped_mean",  # one update late; "mean" is not late
            workers=0,  # 0: one on each device
            batch_size=1024,  # images per update, of all workers
            image_size=224,  # pixels
            worker_processes=0,  # that decode images, on each host; 0: threads decode
            dtype="bfloat16",  # of activations and products
            learning_rate=0.4,  # 0.1 for each 256 images
            momentum=0.9,
            warmup_updates=6250,  # 5 epochs
            updates=112_600,  # 90 epochs of 1,281,167 images
            evaluate_every=1250,  # updates: an epoch
            seeds=1,
        )
    )


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: one training."""
    configs.check_warmup(config)
    exchange = configs.named("exchange", config.exchange, EXCHANGES)
    rate = optax.warmup_cosine_decay_schedule(
        0.0, config.learning_rate, config.warmup_updates, config.updates
    )
    server = optax.sgd(rate, config.momentum, nesterov=True)
    return Experiment(
        question="What does one update of delay cost ResNet-50 on ImageNet?",
        task=tasks.images(
            config.dataset,
            batch_size=config.batch_size,
            data_dir=config.data_dir,
            image_size=config.image_size,
            dtype=config.dtype,
            worker_processes=config.worker_processes,
        ),
        training=on_devices(lambda: exchange(server), workers=config.workers or None),
        seeds=config.seeds,
        updates=config.updates,
        evaluate_every=config.evaluate_every,
        figures=[
            figures.curves("train_loss"),
            figures.curves("test_error"),
        ],
    )
