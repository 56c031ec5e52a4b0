"""How many gradients should an update wait for, and of whom?

The four schemes of Dutta et al. (arXiv:1803.01113) with eight workers: an update after
the gradients of K distinct workers or after any K, with the rest canceled (sync) or
left to go on (async). Softmax regression on scikit-learn's digits, everyone for the
same simulated time, each arm at its best step size. Arms that are the same are run
once: K = 1 has two, and K = 8 distinct workers are all of them.

Service times are exponential with mean 1 s; `:shifted` adds one second to each, and
`:pareto` has P(T > t) = 1 / t^2, of infinite variance.

    python -m experiments.main --config=configs/k_async.py --workdir=runs/k_async
    python -m experiments.main --config=configs/k_async.py:shifted \
        --workdir=runs/k_async_shifted
    python -m experiments.main --config=configs/k_async.py:pareto \
        --workdir=runs/k_async_pareto

About 30 seconds on two cores each. Seen (2026-11-21, commit 80b4f61365d0, jax 0.10.2):
With exponential times K = 2 is best in 300 s: enough gradients an update to be quiet,
without the stragglers. With a second added a canceled gradient is a second lost, and
the asynchronous schemes win, K = 1 first; with heavy tails those do that take any
gradients. The figure update_times has the measured times of an update beside the closed
forms, 0.635 s for k_sync(4) as 1/5 + 1/6 + 1/7 + 1/8 says, 0.5 s for k_batch_async(4);
the mean staleness is P/K - 1 and (P - 1)/K under every law.
"""

from ml_collections import ConfigDict

from configs import default

SERVICES = {
    "exponential": "exponential(1.0)",
    "shifted": "shifted_exponential(1.0, 1.0)",
    "pareto": "pareto(1.0, 2.0)",
}


EXPECTED = {
    "exponential": {
        "updates/sgd/arm=k_sync(4)": 460,
        "updates/sgd/arm=k_async(4)": 460,
        "updates/sgd/arm=k_batch_async(4)": 580,
        "staleness_mean/sgd/arm=k_async(4)": 0.995,
        "staleness_mean/sgd/arm=k_batch_async(4)": 1.74,
        "test_accuracy/sgd/arm=k_sync(2)": 0.963,
        "test_accuracy/sgd/arm=k_sync(8)": 0.942,
        "test_accuracy/sgd/arm=k_async(1)": 0.946,
    },
    "shifted": {
        "updates/sgd/arm=k_sync(8)": 75,
        "updates/sgd/arm=k_batch_async(8)": 147,
        "test_accuracy/sgd/arm=k_sync(1)": 0.907,
        "test_accuracy/sgd/arm=k_async(1)": 0.949,
    },
    "pareto": {
        "updates/sgd/arm=k_sync(8)": 23,
        "updates/sgd/arm=k_batch_async(8)": 138,
        "test_accuracy/sgd/arm=k_sync(8)": 0.861,
        "test_accuracy/sgd/arm=k_batch_async(4)": 0.955,
    },
}


def get_config(service: str = "exponential") -> ConfigDict:
    """Thirteen arms under one law of service times."""
    if service not in SERVICES:
        raise ValueError(f"k_async.py:{service} is none of {', '.join(SERVICES)}.")
    config = default.get_config()
    config.task.depth = 0
    config.task.batch_size = 4
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.1, 0.3, 1.0, 3.0, 10.0)
    config.cluster.workers = 8
    config.cluster.service = SERVICES[service]
    config.cluster.seconds = 300.0
    config.cluster.arms = (
        *("k_sync(1)", "k_async(1)"),
        *(
            f"{scheme}({k})"
            for k in (2, 4)
            for scheme in ("k_sync", "k_batch_sync", "k_async", "k_batch_async")
        ),
        *("k_sync(8)", "k_batch_sync(8)", "k_batch_async(8)"),
    )
    config.checkpoint_every = 1000
    config.figures = ("over_seconds", "over_updates", "update_times", "staleness")
    config.expected = ConfigDict(EXPECTED[service])
    return config
