"""How many asynchronous workers are fastest at one step size, and how many too many?

A quadratic of curvature 1 without noise, plain SGD that updates at each gradient, the
step 0.05 whatever the number of workers. A gradient takes 1 s in the mean, with a
coefficient of variation of 1/4, 0.71 and 1. The rate at which the error dies out, from
the slope of each run, is drawn beside `stability.workers_decay_rate`, which follows
from the delay equation of Yu, Chen and Poor (arXiv:2406.11159). `:spectrum` adds a
curvature of 1/5, and leaves out the memoryless times, which have no limit.

    python -m experiments.main --config=configs/workers.py --workdir=runs/workers
    python -m experiments.main --config=configs/workers.py:spectrum \
        --workdir=runs/workers_spectrum

About 50 seconds on two cores, the second 35. Seen (2026-11-21, commit 2c6d60f62666,
jax 0.10.2):
With times of shape 16 eight workers are fastest, 19 times as fast as one; 16 are half
as fast as eight, and 64 diverge, as in theory all from 35 on. Of both gamma laws the
means over seeds are within 2.5 % of theory up to 32 workers, except where the rate is
next to 0: there, and beyond, they are within 0.04 / s, for the error swings, and slopes
of 60 s of it have a standard deviation of up to 0.06 / s. Of memoryless times theory
has the rate of the mean over runs, which swing out of step and cancel each other. A
single run is slower, by 7 % with 16 workers and 26 % with 96, and within 3 % of what
`stability.TraceDynamics` has of a trace; up to 8 workers both agree (one worker is 6 %
too fast by the luck of these seeds). Under `:spectrum` the best number is nearer to the
limit, 22 of 35 and 26 of 81, since more workers help the slow direction until the
stiff one swings as long. With 24 the rates are 0.25 and 0.36 / s, within 2.3 % of
theory, with fewer workers within 1.1 %.
"""

from ml_collections import ConfigDict

from configs import default

LAWS = {
    "curvature": ("gamma(1.0,16)", "gamma(1.0,2)", "exponential(1.0)"),
    "spectrum": ("gamma(1.0,16)", "gamma(1.0,2)"),
}
CURVATURES = {"curvature": (1.0,), "spectrum": (0.2, 1.0)}
TARGETS = {"curvature": 1e-12, "spectrum": 1e-6}  # of the loss
# arms by their numbers: their names have dots, which keys may not
EXPECTED = {
    "curvature": {
        "seconds_to_target/sgd/arm=0": 273,  # one worker of gamma(1.0,16)
        "seconds_to_target/sgd/arm=3": 15.7,  # eight, the fastest
        "seconds_to_target/sgd/arm=4": 25.7,  # 16
        "seconds_to_target/sgd/arm=12": 19.8,  # eight of gamma(1.0,2)
        "seconds_to_target/sgd/arm=15": 39.2,  # 32
        "seconds_to_target/sgd/arm=21": 20.4,  # eight of exponential(1.0)
        "seconds_to_target/sgd/arm=26": 32.9,  # 96
        "staleness_mean/sgd/arm=3": 6.95,
    },
    "spectrum": {
        "seconds_to_target/sgd/arm=0": 583,  # one worker of gamma(1.0,16)
        "seconds_to_target/sgd/arm=3": 68.0,  # eight
        "seconds_to_target/sgd/arm=5": 21.9,  # 24
        "seconds_to_target/sgd/arm=14": 17.9,  # 24 of gamma(1.0,2)
        "seconds_to_target/sgd/arm=15": 19.4,  # 32
    },
}


def get_config(question: str = "curvature") -> ConfigDict:
    """An arm for each law and number of workers, at least 60 s and 640 gradients."""
    if question not in LAWS:
        raise ValueError(f"workers.py:{question} is none of {', '.join(LAWS)}.")
    config = default.get_config()
    config.task.name = "quadratic"
    config.task.eigenvalues = CURVATURES[question]
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.05,)
    config.cluster.evaluations = 60
    config.cluster.arms = tuple(
        f"k_async(1) workers={workers} service={law}"
        f" seconds={max(60.0, 640.0 / workers):.1f}"
        for law in LAWS[question]
        for workers in (1, 2, 4, 8, 16, 24, 32, 64, 96)
    )
    config.target.value = TARGETS[question]
    config.seeds = tuple(range(8))
    config.checkpoint_every = 100_000
    config.metric = "train_loss"
    config.figures = ("decay_rate",)
    config.expected = ConfigDict(EXPECTED[question])
    return config
