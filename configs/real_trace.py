"""What does the staleness of a real cluster cost?

An MLP on scikit-learn's digits is trained along a log, a .csv with the columns

    update,time_s,worker,read_version

and a row for each gradient that was applied, or a .npz that `Trace.save` wrote. Plain
steps against three laws of staleness, each at its best step size.

    python -m experiments.main --config=configs/real_trace.py \
        --config.trace=trace.csv --workdir=runs/real_trace
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """The whole log, or the first 10 000 updates of it."""
    config = default.get_config()
    config.trace = "trace.csv"
    config.steps = 10_000
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    config.modulation.law = ("none", "inverse", "polynomial", "capped")
    config.modulation.placement = ("before",)
    config.figures = ("over_seconds", "over_updates", "staleness", "loss_curves")
    config.expected = ConfigDict()
    return config
