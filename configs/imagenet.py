"""What does one update of delay cost ResNet-50 on ImageNet, on a pod?

ResNet-50 with GroupNorm (He et al., arXiv:1512.03385; Wu and He, arXiv:1803.08494) in
bfloat16, random crops and mirrored images, SGD with Nesterov momentum, 90 epochs of
1,024 images an update, a worker a device; their mean gradient is used one update late.
Step size and warm-up follow Goyal et al. (arXiv:1706.02677). There is no weight
decay, so their accuracy is not what to expect.

    python -m experiments.main --config=configs/imagenet.py --distributed \
        --config.data_dir=/data --workdir=gs://bucket/imagenet

on every host, with the set as array_record under /data: `tasks.images` says how.
`--config.exchange=mean` is the synchronous run to compare it
with. 445 images of the training set and 445 of the validation set are evaluated, what
the compiled program holds; an accuracy of theirs is known to about 2 points.

Not run: nothing here has a pod or ImageNet, so that there is neither a wall time nor an
expected accuracy. With images of 32 pixels four updates were trained on two CPU
devices. Compiled only, with other photographs (2026-11-23, libtpu 0.0.42.1), for a
slice v5e:4x4, of whose 15.75 GiB a device it needs 3.5. Of 102 MB of gradients all are
sent beside enough computation for the links' published 100 GB/s: by estimate sending
takes 1.9 ms of an update of 42 ms. `compile_pod` (docs/pods.md) prints such figures.
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
    """One cell, one worker a device; any number of devices that divides 16 will do."""
    return ConfigDict(
        dict(
            dataset="imagenet2012",  # of TFDS
            data_dir="",  # where prepared sets are; "" is TFDS's own default
            exchange="overlapped_mean",  # an update late; "mean" is not
            workers=0,  # as many as there are devices
            batch_size=1024,  # images an update, of all workers
            image_size=224,  # pixels
            worker_processes=0,  # that decode, on each host; 0: threads do
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
    """One run."""
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
