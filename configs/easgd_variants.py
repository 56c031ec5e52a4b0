"""Which variant of elastic averaging, and how often must workers see the center?

The eight variants of You, Buluc and Demmel (arXiv:1708.02983) on eight workers, each
meeting the center after 1, 4, 16 or 64 local steps: an MLP on scikit-learn's digits.
Service times are lognormal with mean 1 s, and a message takes 0.1 s, one at a time
where the center has a lock; all have 400 simulated seconds and their own best step.

    python -m experiments.main --config=configs/easgd_variants.py \
        --workdir=runs/easgd_variants

About 3 minutes on two cores. Seen (2026-11-21, commit 0a70363d8eed, jax 0.10.2):
Elastic averaging ends at 4 to 8 % test error whether workers meet the center after 1 or
64 steps, with a lock or without (EA-wild); with momentum at 4 to 5 %. What is pushed
and forgotten fails from 16 steps on, 19 to 24 %, and 45 to 54 % at 64: its pushes of 8
workers add up. At every step the lock costs time: async_easgd takes 260 steps in 400 s,
ea_wild 357.
"""

from ml_collections import ConfigDict

from configs import default

VARIANTS = (
    *("original_easgd", "async_easgd", "async_measgd", "ea_wild", "sync_easgd"),
    *("async_sgd", "async_msgd", "hogwild_sgd"),
)


def get_config() -> ConfigDict:
    """32 arms."""
    config = default.get_config()
    config.task.batch_size = 4
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (
        *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    )
    config.cluster.workers = 8
    config.cluster.service = "lognormal(1.0, 0.2)"
    config.cluster.message_bytes = 9_640.0  # 2,410 parameters, float32
    config.cluster.bytes_per_second = 96_400.0
    config.cluster.serial = True
    config.cluster.seconds = 400.0
    config.cluster.arms = tuple(
        f"{variant}(period={period})"
        for variant in VARIANTS
        for period in (1, 4, 16, 64)
    )
    config.over.option = "period"
    config.over.label = "local steps between two meetings"
    config.checkpoint_every = 1000
    config.figures = ("over_option", "arms", "over_seconds")
    config.expected = ConfigDict(
        {
            "updates/sgd/arm=async_easgd(period=1)": 260,
            "updates/sgd/arm=ea_wild(period=1)": 357,
            "test_accuracy/sgd/arm=async_easgd(period=16)": 0.957,
            "test_accuracy/sgd/arm=async_easgd(period=64)": 0.932,
            "test_accuracy/sgd/arm=async_measgd(period=16)": 0.956,
            "test_accuracy/sgd/arm=ea_wild(period=16)": 0.95,
            "test_accuracy/sgd/arm=ea_wild(period=64)": 0.933,
            "test_accuracy/sgd/arm=sync_easgd(period=64)": 0.923,
            "test_accuracy/sgd/arm=async_sgd(period=1)": 0.949,
            "test_accuracy/sgd/arm=async_sgd(period=16)": 0.76,
            "test_accuracy/sgd/arm=async_sgd(period=64)": 0.46,
        }
    )
    return config
