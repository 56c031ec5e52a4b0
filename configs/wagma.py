"""How much time does it save to wait for no slow worker, and what does it cost?

The imbalance of Li et al. (WAGMA-SGD, arXiv:2005.00124): at each step two of P workers
take 0.32 s longer than the 0.4 s of the others. WAGMA-SGD averages in groups of sqrt(P)
and waits for nobody, with a global average every 11 steps, beside its six baselines, on
16, 64 and 256 workers with a batch of 2 each: an MLP on scikit-learn's digits. All have
80 simulated seconds, and their own best step.

    python -m experiments.main --config=configs/wagma.py --workdir=runs/wagma

About 3 minutes on two cores. Seen (2026-11-21, commit 966d24850563, jax 0.10.2):
Waiting for the sleepers costs Allreduce-SGD 0.72 s a step, WAGMA-SGD takes 0.49, 0.46
and 0.45 s on 16, 64 and 256 workers and ends with the lowest error of all on 64 and 256
(3.5 and 3.3 %; Allreduce 5.9 and 3.8 %, eager-SGD 4.3 and 3.8 %). AD-PSGD and D-PSGD
are faster still, at 0.40 s, but pairs and neighbors spread what is learnt too slowly:
more workers are of no use to them beyond 64. On 16 workers the seeds differ more than
the methods do.
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
    config.expected = ConfigDict(
        {
            "updates/sgd/arm=allreduce_sgd() workers=64": 110,
            "updates/sgd/arm=wagma(period=11) workers=64": 168,
            "updates/sgd/arm=ad_psgd() workers=64": 189,
            "staleness_mean/sgd/arm=wagma(period=11) workers=16": 0.55,
            "test_accuracy/sgd/arm=wagma(period=11) workers=64": 0.965,
            "test_accuracy/sgd/arm=allreduce_sgd() workers=64": 0.941,
            "test_accuracy/sgd/arm=eager_sgd() workers=64": 0.957,
            "test_accuracy/sgd/arm=local_sgd(period=10) workers=64": 0.898,
            "test_accuracy/sgd/arm=ad_psgd() workers=256": 0.927,
        }
    )
    return config
