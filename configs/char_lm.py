"""Which optimizer tolerates late gradients best on a language model?

A decoder-only Transformer on the characters of the standard library's own manual,
SGD, Adam and Muon, gradients 0 to 8 updates late, the step tuned anew for each
optimizer and delay.

    python -m experiments.main --config=configs/char_lm.py --workdir=runs/char_lm

About 6 minutes on two cores. Seen (2026-11-21, commit cd6429a070e3, jax 0.10.2):
A delay of 8 costs Muon 0.38 nats, Adam 0.45, SGD with momentum 0.71. (Python 3.11.7;
the text differs a little from Python to Python.)
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """A Transformer small enough for 300 of them to train on two cores."""
    config = default.get_config()
    config.task.name = "char_lm"
    config.task.batch_size = 8
    config.task.width = 32
    config.task.depth = 2
    config.task.heads = 4
    config.task.context = 32
    config.opt.name = ("sgd", "adam", "muon")
    config.opt.sgd.learning_rate = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    config.opt.sgd.momentum = 0.9
    config.opt.adam.learning_rate = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
    config.opt.muon.learning_rate = (0.004, 0.008, 0.016, 0.032, 0.064)
    config.opt.warmup_steps = 50
    config.opt.decay = "cosine"
    config.delay.value = (0, 1, 2, 4, 8)
    config.steps = 800
    config.chunk = 50
    config.checkpoint_every = 200
    config.metric = "test_loss"
    config.expected = ConfigDict(
        {
            "test_loss/sgd/delay=0": 2.19,
            "test_loss/sgd/delay=8": 2.89,
            "test_loss/adam/delay=0": 2.05,
            "test_loss/adam/delay=8": 2.5,
            "test_loss/muon/delay=0": 1.92,
            "test_loss/muon/delay=8": 2.3,
        }
    )
    return config
