"""Does dividing each gradient's rate by its staleness rescue n-softsync?

Thirty workers, four examples a gradient, an MLP on scikit-learn's digits; the server
updates after P / n gradients, so that their staleness is about n. At the step that is
best for n = 1, kept for all n: no law, each gradient's rate divided by its staleness
(Zhang et al., arXiv:1511.05950), and the rate divided by the arm's mean staleness
(Rudra, arXiv:1509.04210). Beside it, the step tuned anew for each n and law. All use
the same number of examples; momentum 0.9 sits at the server.

    python -m experiments.main --config=configs/softsync.py --workdir=runs/softsync

`:tradeoff` splits 120 examples an update among P workers: accuracy against simulated
run time for hardsync, 1-softsync and P-softsync, where a gradient of m examples takes
0.02 + 0.01 m seconds (an assumed cost: some overhead, and the rest in proportion).

    python -m experiments.main --config=configs/softsync.py:tradeoff \
        --workdir=runs/tradeoff
"""

from ml_collections import ConfigDict

from configs import default


def get_config(question: str = "laws") -> ConfigDict:
    """Digits on a cluster of equal workers with nearly constant service times."""
    config = default.get_config()
    config.opt.name = ("sgd",)
    config.opt.sgd.momentum = 0.9
    config.modulation.placement = ("before",)
    config.cluster.examples = 27_000  # twenty times all of them
    config.checkpoint_every = 2000
    config.expected = ConfigDict()
    if question == "laws":
        config.opt.sgd.learning_rate = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
        config.task.batch_size = 4
        config.cluster.workers = 30
        config.cluster.service = "lognormal(1.0, 0.05)"
        config.cluster.arms = tuple(f"n_softsync({n})" for n in (1, 2, 6, 15, 30))
        config.modulation.law = ("none", "inverse", "by_mean")
        config.figures = ("arms", "over_updates", "staleness", "loss_curves")
    elif question == "tradeoff":
        config.opt.sgd.learning_rate = (0.01, 0.03, 0.1, 0.3, 1.0)
        config.modulation.law = ("inverse",)
        config.cluster.arms = (
            *(
                f"{protocol} workers={workers} batch_size={120 // workers}"
                f" service=lognormal({0.02 + 0.01 * (120 // workers):.4g}, 0.05)"
                for workers in (30, 15, 8, 4)
                for protocol in (
                    *("hardsync()", "n_softsync(1)", f"n_softsync({workers})"),
                )
            ),
            "hardsync() workers=1 batch_size=120 service=lognormal(1.22, 0.05)",
        )
        config.figures = ("over_seconds", "arms", "loss_curves")
    else:
        raise ValueError(f"softsync.py:{question} is none of laws and tradeoff.")
    return config
