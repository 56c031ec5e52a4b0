"""Which asynchronous method is fastest when most workers are slow?

Worker i takes sqrt(i) times as long as the first, and there are 8, 32 or 128 of them:
more workers are more gradients a second, but older ones. Logistic regression on breast
cancer data, one example a gradient, the simulated time until the norm of the full
gradient is below a target, each arm at the step size that gets there first. Plain ASGD,
with its steps also capped at P / tau (Mishchenko et al., arXiv:2206.07638), against
Rennala (arXiv:2305.12387), Ringmaster without and with calculation stops
(arXiv:2501.16168), Ringleader (arXiv:2509.22860) and MindFlayer (arXiv:2410.04285).
`:linear` makes worker i take i times as long.

    python -m experiments.main --config=configs/time_optimal.py \
        --workdir=runs/time_optimal
    python -m experiments.main --config=configs/time_optimal.py:linear \
        --workdir=runs/time_optimal_linear

About 40 seconds on two cores. Seen (2026-11-21, commit 80b4f61365d0, jax 0.10.2):
With its step tuned plain ASGD is among the fastest, and the cap at P / tau changes
nothing. Rennala's time does not depend on how many slow workers are added, as proved,
but a batch of 8 is more than this target needs; stopping late computations makes
Ringmaster as fast as ASGD, at 128 workers faster. Ringleader waits for everybody, and
for the slowest of 128 too long. Under `:linear` slow workers are slower still: from 32
to 128 of them plain ASGD takes twice as long, 1.6 times capped, while Rennala and
Ringmaster notice nothing. The 4 s that MindFlayer allots are enough for four workers
alone.
"""

from ml_collections import ConfigDict

from configs import default

EXPECTED = {
    "sqrt": {
        "seconds_to_target/sgd/arm=k_async(1) workers=32": (35, 55),
        "seconds_to_target/sgd/arm=rennala(8) workers=8": (95, 130),
        "seconds_to_target/sgd/arm=rennala(8) workers=128": (95, 130),
        "seconds_to_target/sgd/arm=ringmaster(16) workers=128": (45, 65),
    },
    "linear": {
        "seconds_to_target/sgd/arm=k_async(1) workers=32": (85, 110),
        "seconds_to_target/sgd/arm=k_async(1) workers=128": (165, 215),
        "seconds_to_target/sgd/arm=ringmaster(16) workers=32": (95, 125),
        "seconds_to_target/sgd/arm=ringmaster(16) workers=128": (95, 125),
    },
}


def get_config(speeds: str = "sqrt") -> ConfigDict:
    """Six protocols on clusters of three sizes."""
    if speeds not in EXPECTED:
        raise ValueError(f"time_optimal.py:{speeds} is none of {', '.join(EXPECTED)}.")
    config = default.get_config()
    config.task.name = "breast_cancer"
    config.task.batch_size = 1
    config.task.l2 = 0.1
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    config.modulation.law = ("none", "capped")
    config.cluster.service = "shifted_exponential(0.5, 0.5)"
    config.cluster.speeds = speeds
    config.cluster.seconds = 300.0
    config.cluster.evaluations = 50
    config.cluster.arms = tuple(
        f"{protocol} workers={workers}"
        for workers in (8, 32, 128)
        for protocol in (
            "k_async(1)",
            "rennala(8)",
            "ringmaster(16)",
            "ringmaster(16, stop=True)",
            "ringleader()",
            "mindflayer(1, 4.0)",
        )
    )
    config.metric = "seconds_to_target"
    config.target.metric = "gradient_norm"
    config.target.value = 0.05
    config.select_by = "seconds_to_target"
    config.checkpoint_every = 1000
    config.figures = ("over_option", "over_seconds", "staleness")
    config.expected = ConfigDict(EXPECTED[speeds])
    return config
