"""How often must replicas average, and may the average be late?

Local SGD with Adam inside, periods of 1 to 32 steps, beside averages that come late and
hide behind the local steps (DaSGD, DGA), on four workers: a one-block Transformer on
the characters of the standard library's own manual. A gradient takes 1 s (lognormal, a
spread of 0.3), an all-reduce 2 s. All have 600 simulated seconds, and their own best
step.

    python -m experiments.main --config=configs/local_sgd.py --workdir=runs/local_sgd

About 4 minutes on two cores.
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
    config.figures = ("over_seconds", "arms", "update_times")
    return config
