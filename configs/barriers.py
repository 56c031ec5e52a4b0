"""How strict must a barrier be?

Thirty-two workers whose tasks take 1 + Exp(1) s, an update for each gradient. BSP lets
nobody run ahead, SSP nobody more than 2, 4 or 8 tasks (Ho et al., NIPS 2013), ASP
everybody; PSP asks 1, 4 or 16 workers drawn at random instead of all (Wang et al.,
arXiv:1709.07772, whose simulation lasts 200 s as well). An MLP on scikit-learn's
digits, each arm at its best step size.

    python -m experiments.main --config=configs/barriers.py --workdir=runs/barriers
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """From BSP, the first arm, to ASP."""
    config = default.get_config()
    config.task.batch_size = 4
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.003, 0.01, 0.03, 0.1, 0.3)
    config.cluster.workers = 32
    config.cluster.service = "shifted_exponential(1.0, 1.0)"
    config.cluster.seconds = 200.0
    config.cluster.arms = (
        "ssp(0)",
        *(f"ssp({bound})" for bound in (2, 4, 8)),
        *(f"psp({sample}, 0)" for sample in (1, 4, 16)),
        "psp(4, 4)",
        "ssp(inf)",
    )
    config.checkpoint_every = 1000
    config.figures = ("over_seconds", "over_updates", "staleness", "loss_curves")
    config.expected = ConfigDict()
    return config
