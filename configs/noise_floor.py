"""Where does gradient noise leave the loss, and how much higher if gradients are late?

A quadratic of 1024 equal curvatures with noise of standard deviation 0.2, plain SGD.
Step sizes times delays are one program; the steps 0.587, 0.33, 0.175 and 0.09 are 95 %
of the limit at delays of 2, 4, 8 and 16. The training loss after 4000 updates, against

    1/2 sum_i lambda_i Var x_i

with the variances of `Dynamics.stationary_variance`. Eight seeds of 1024 directions
are 8192 samples of a variance: its standard error is sqrt(2/8192) = 1.6 %, and all
cells of a seed share their noise.

    python -m experiments.main --config=configs/noise_floor.py \
        --workdir=runs/noise_floor

About 10 seconds on two cores. Seen (2026-11-21, commit 2c6d60f62666, jax 0.10.2):
All 33 cells below the limit are within 3.5 % of theory, 0.8 % below it in the mean,
with a standard deviation of 1.6 %, as samples alone would have; there is no trend
towards the limit. The 12 cells beyond it diverge. At a step of 0.03 a delay of 16 costs
a factor of 1.65; at 0.09, 95 % of the limit, a factor of 23.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """45 cells, of which theory says that 12 diverge."""
    config = default.get_config()
    config.task.name = "quadratic"
    config.task.eigenvalues = (1.0,) * 1024
    config.task.noise = 0.2
    config.opt.name = ("sgd",)
    config.opt.sgd.learning_rate = (0.03, 0.09, 0.175, 0.33, 0.587)
    config.delay.value = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    config.seeds = tuple(range(8))
    config.steps = 4000
    config.chunk = 400
    config.checkpoint_every = 4000
    config.metric = "train_loss"
    config.figures = ("noise_floor",)
    config.expected = ConfigDict(
        {
            "train_loss/sgd/delay=0": 0.307,  # theory 0.312
            "train_loss/sgd/delay=8": 0.393,  # 0.398
            "train_loss/sgd/delay=16": 0.506,  # 0.515
            "stable_step/sgd/delay=2": 0.587,  # the limit is 0.618
            "stable_step/sgd/delay=4": 0.33,  # 0.347
            "stable_step/sgd/delay=8": 0.175,  # 0.185
            "stable_step/sgd/delay=16": 0.09,  # 0.0952
        }
    )
    return config
