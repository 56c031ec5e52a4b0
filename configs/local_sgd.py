"""How often must replicas average, and may the average be late?

Local SGD with Adam inside, periods of 1 to 32 steps, beside averages that come late and
hide behind the local steps (DaSGD, DGA), on four workers: a one-block Transformer on
the characters of the standard library's own manual. A gradient takes 1 s (lognormal, a
spread of 0.3), an all-reduce 2 s. All have 600 simulated seconds, and their own best
step.

    python -m experiments.main --config=configs/local_sgd.py --workdir=runs/local_sgd

About 5 minutes on two cores. Seen (2026-11-21, commit 966d24850563, jax 0.10.2):
Averaging every 8 steps is best, 0.19 nats ahead of averaging gradients at each: fewer
waits buy 440 steps in place of 180, and from 16 steps on the models are too far apart.
An average that comes 4 steps late takes no time (560 steps) and costs nothing to speak
of; DGA's, which is sent at every step, fills the link. (Python 3.11.7; the text differs
a little from Python to Python.)
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """Nine arms."""
    config = default.get_config()
    config.task.name = "char_lm"
    config.task.batch_size = 4
    config.task.context = 32
    config.opt.name = ("adam",)
    config.opt.adam.learning_rate = (0.004, 0.008, 0.016, 0.032)
    config.cluster.workers = 4
    config.cluster.service = "lognormal(1.0, 0.3)"
    config.cluster.latency_seconds = 0.5  # of 4 messages one after the other
    config.cluster.seconds = 600.0
    config.cluster.arms = (
        "allreduce_sgd()",
        *(f"local_sgd(period={period})" for period in (1, 2, 4, 8, 16, 32)),
        "dasgd(period=8, delay=4)",
        "dga(delay=2)",
    )
    config.metric = "test_loss"
    config.checkpoint_every = 1000
    config.figures = ("arms", "over_seconds", "update_times")
    config.expected = ConfigDict(
        {
            "updates/adam/arm=allreduce_sgd()": 180,
            "updates/adam/arm=local_sgd(period=8)": 440,
            "updates/adam/arm=dasgd(period=8, delay=4)": 560,
            "test_loss/adam/arm=allreduce_sgd()": 2.29,
            "test_loss/adam/arm=local_sgd(period=1)": 2.28,
            "test_loss/adam/arm=local_sgd(period=8)": 2.1,
            "test_loss/adam/arm=local_sgd(period=32)": 2.14,
            "test_loss/adam/arm=dasgd(period=8, delay=4)": 2.1,
        }
    )
    return config
