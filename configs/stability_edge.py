"""At which step size does delayed gradient descent diverge?

Full-batch gradient descent, no noise: every step size and every delay is one cell of
one program. Cells that diverge are black. The line is not fitted: it is

    stability.Dynamics(tau).step_limit() / lambda = 2 sin(pi / (2 (2 tau + 1))) / lambda

with the largest Hessian eigenvalue lambda. By default the loss is breast-cancer
logistic regression, with lambda at its optimum; `:quadratic` is a quadratic of chosen
spectrum; `:digits_mlp` is a perceptron, with lambda measured before the first update.

    python -m experiments.main --config=configs/stability_edge.py --workdir=runs/edge
    python -m experiments.main --config=configs/stability_edge.py:quadratic \
        --workdir=runs/edge_quadratic
    python -m experiments.main --config=configs/stability_edge.py:digits_mlp \
        --workdir=runs/edge_mlp

About 15 seconds on two cores, and a minute for the perceptron. Seen (2026-11-21, commit
2c6d60f62666, jax 0.10.2): Past the line no cell settles. Just past it the logistic loss
cycles, since its gradient is bounded, and only from 1.6 times the line on does it end
above where it began, which is what `stable_step` counts. Of the perceptron the best
step at each delay is 0.6 to 1.05 times the line, which is known beforehand; much beyond
it the units die, at the loss of a guess.
"""

from ml_collections import ConfigDict

from configs import default


def get_config(task: str = "breast_cancer") -> ConfigDict:
    """A map of 60 step sizes and 33 delays; 24 of the perceptron."""
    config = default.get_config()
    config.task.name = task
    config.task.batch_size = 0
    config.task.l2 = 0.1
    config.task.eigenvalues = (0.1, 0.3, 1.0)
    config.opt.name = ("sgd",)
    smallest, largest, count = 0.03, 10.0, 60
    config.delay.value = tuple(range(33))
    config.seeds = (0,)
    config.steps = 4000
    config.chunk = 100
    config.checkpoint_every = 1000
    config.advise = True
    config.metric = "train_loss"
    config.figures = ("stability_map", "loss_curves")
    match task:
        case "breast_cancer":  # the line is at 3.24, 0.30 and 0.078
            config.expected = ConfigDict(
                {
                    "stable_step/sgd/delay=0": (3.2, 5.2),
                    "stable_step/sgd/delay=8": (0.29, 0.48),
                    "stable_step/sgd/delay=32": (0.077, 0.125),
                }
            )
        case "quadratic":  # the line is at 2.0 and 0.185: the grid's step below it
            config.expected = ConfigDict(
                {
                    "stable_step/sgd/delay=0": (1.8, 2.0),
                    "stable_step/sgd/delay=8": (0.167, 0.185),
                }
            )
        case "digits_mlp":
            smallest, largest = 0.015, 2.0
            config.task.width = 16
            config.task.test_fraction = 0.8
            config.delay.value = (*range(17), 18, 20, 22, 24, 26, 28, 32)
            config.steps = 1000
            config.checkpoint_every = 500
            config.figures = ("stability_map", "best_step", "loss_curves")
            config.expected = ConfigDict(  # the line is at 1.29, 0.119 and 0.062
                {
                    "learning_rate/sgd/delay=0": (1.0, 1.7),
                    "learning_rate/sgd/delay=8": (0.09, 0.16),
                    "learning_rate/sgd/delay=16": (0.035, 0.08),
                    "train_loss/sgd/delay=0": (0.0, 0.005),
                    "train_loss/sgd/delay=8": (0.03, 0.08),
                }
            )
    config.opt.sgd.learning_rate = tuple(
        round(smallest * (largest / smallest) ** (i / (count - 1)), 6)
        for i in range(count)
    )
    return config
