"""What is saved by not waiting for who sleeps, and what does it cost in error?

The imbalance of Li et al. (WAGMA-SGD, arXiv:2005.00124): at each step two of P workers
take 0.32 s longer than the 0.4 s of the others. WAGMA-SGD averages in groups of sqrt(P)
and waits for nobody, with a global average every 11 steps, beside its six baselines, on
16, 64 and 256 workers with a batch of 2 each: an MLP on scikit-learn's digits. All have
80 simulated seconds, and their own best step.

    python -m experiments.main --config=configs/wagma.py --workdir=runs/wagma

About 3 minutes on two cores.
"""

from ml_collections import ConfigDict

from configs import default

METHODS = (
    *("wagma(period=11)", "allreduce_sgd()", "eager_sgd()", "local_sgd(period=10)"),
    *("d_psgd()", "ad_psgd()", "sgp(peers=2)"),
)


def get_config() -> ConfigDict:
    """21 arms."""
    config = default.get_config()
    config.task.batch_size = 2
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.03, 0.1, 0.3, 1.0, 3.0)
    config.cluster.seconds = 80.0
    config.cluster.arms = tuple(
        f"{method} workers={workers} service=sleepers(0.4,0.32,{workers})"
        for workers in (16, 64, 256)
        for method in METHODS
    )
    config.over.label = "workers"
    config.checkpoint_every = 1000
    config.figures = ("over_option", "update_times", "over_seconds")
    return config
