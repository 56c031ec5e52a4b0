"""Are delays of one mean equally harmful, however they are spread?

Gradient descent on a quadratic, under delays that are constant, Poisson, uniform or
geometric, of the same mean: every step size is one cell of one program. The lines are
delayjax.stability's limits in mean square, of independent delays.

    python -m experiments.main --config=configs/delay_laws.py --workdir=runs/laws

About 30 seconds on two cores. Seen (2026-11-21, commit 2c6d60f62666, jax 0.10.2):
From a mean of 4 on, the wider the spread the larger the stable step: at a mean of 16 it
is 0.088 if all are 16, 0.097 if they are Poisson, 0.14 uniform and 0.38 geometric, as
of memoryless workers. The lines are 0.095, 0.102, 0.138 and 0.347: single runs bear up
to 1.3 times the limit of the mean square, since what makes it grow are few runs among
many.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """A map of 48 step sizes and 12 mean delays for each law."""
    config = default.get_config()
    config.task.name = "quadratic"
    config.task.eigenvalues = (0.1, 0.3, 1.0)
    config.opt.name = ("sgd",)
    smallest, largest, count = 0.04, 4.0, 48
    config.opt.sgd.learning_rate = tuple(
        round(smallest * (largest / smallest) ** (i / (count - 1)), 6)
        for i in range(count)
    )
    config.delay.law = ("constant", "poisson", "uniform", "geometric")
    config.delay.value = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)
    config.delay.max_delay = 255
    config.steps = 4000
    config.chunk = 100
    config.checkpoint_every = 1000
    config.advise = True
    config.metric = "train_loss"
    config.figures = ("stability_map", "loss_curves")
    config.expected = ConfigDict(
        {  # the steps tried are 10 % apart; the limits at 16 are those above
            "stable_step/sgd/delay=0/law=geometric": (1.8, 2.0),
            "stable_step/sgd/delay=16/law=constant": (0.086, 0.096),
            "stable_step/sgd/delay=16/law=poisson": (0.09, 0.12),
            "stable_step/sgd/delay=16/law=uniform": (0.12, 0.17),
            "stable_step/sgd/delay=16/law=geometric": (0.31, 0.46),
        }
    )
    return config
