"""What does one update of delay cost ResNet-50 on ImageNet, on a pod?

ResNet-50 with GroupNorm (He et al., arXiv:1512.03385; Wu and He, arXiv:1803.08494) in
bfloat16, random crops and mirrored images, SGD with Nesterov momentum, 90 epochs of
1,024 images an update on 16 workers; their mean gradient is used one update late.
Step size and warm-up are those of Goyal et al. (arXiv:1706.02677). There is no weight
decay, so their accuracy is not what to expect.

    python -m experiments.main --config=configs/imagenet.py --distributed \
        --config.task.data_dir=/data --workdir=gs://bucket/imagenet

on every host, with the set as array_record under /data: `python -m experiments.prepare
imagenet2012` says how. `--config.exchange=mean` is the synchronous run to compare it
with. 445 images of the training set and 445 of the validation set are evaluated, what
the compiled program holds; an accuracy of theirs is known to about 2 points.

Not run: nothing here has a pod or ImageNet, so that there is neither a wall time nor an
expected accuracy. Nor has it been compiled for one: its network was traced at full
size, and with images of 32 pixels four updates were trained on two CPU devices.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """One cell, one worker a device; any number of devices that divides 16 will do."""
    config = default.get_config()
    config.task.name = "tfds:imagenet2012"
    config.task.batch_size = 1024  # 64 images a worker
    config.task.image_size = 224
    config.task.dtype = "bfloat16"
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.4,)  # 0.1 for each 256 images
    config.opt.sgd.momentum = 0.9
    config.opt.sgd.nesterov = True
    config.opt.warmup_steps = 6250  # 5 epochs
    config.opt.decay = "cosine"
    config.delay.value = (0,)
    config.execution = "run"
    config.mesh.workers = 16
    config.exchange = "overlapped_mean"
    config.seeds = (0,)
    config.steps = 112_600  # 90 epochs of 1,281,167 images
    config.chunk = 10  # 150 MB a worker and chunk are on their way at once
    config.checkpoint_every = 1000
    config.metric = "test_accuracy"
    config.figures = ("loss_curves",)
    config.expected = ConfigDict()
    return config
