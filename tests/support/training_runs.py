"""Trainings of noisy quadratics by the runner, for several tests."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments import Experiment, tasks
from experiments.running import execution, loop
from experiments.running.programs import programs
from experiments.running.trainer import Trainer

RATES = (0.05, 0.1)
CURVATURES, NOISE = np.array([0.3, 1.0]), 0.5
NOISY = tasks.quadratic(tuple(CURVATURES.tolist()), noise=NOISE)
QUIET = tasks.quadratic(tuple(CURVATURES.tolist()))
DIGITS = tasks.digits_mlp(batch_size=8, width=4)
DIGITS_PARAMETERS = 64 * 4 + 4 + 4 * 10 + 10


def program_of(training, **changes):
    """The one program of an experiment, which is short unless arguments change it."""
    changes = (
        dict(question="?", task=NOISY, seeds=(3, 5), updates=24, evaluations=3)
        | {"grid": {"learning_rate": RATES}}
        | changes
    )
    (program,) = programs(Experiment(training=training, **changes))
    return program


def nothing(*numbers):
    """Saves and reports nothing."""


def into(saved):
    """Returns a function that appends a copy of each state to a list."""

    def save(step, state):
        saved.append(jax.tree.map(jnp.copy, state))

    return save


def check_resumed(run, saved):
    """A run that continues from a saved state ends with the same bits."""
    assert 0 < int(execution.held(saved).step) < run.job.updates
    second = loop.run(
        *(run.trainer, jax.tree.map(jnp.copy, saved)),
        **dict(save=nothing, report=nothing, checkpoint_every=8),
    )
    jax.tree.map(np.testing.assert_array_equal, second, run.state)


def final_loss(trainer):
    """The training loss after the last update, [seeds, cells]."""
    state = loop.run(
        trainer,
        trainer.init(),
        save=nothing,
        report=nothing,
        alone=False,
    )
    return np.asarray(trainer.evaluate(state)["train_loss"])


class Trained:
    """A program after its last update, and its reports."""

    def __init__(self, training=None, *, of=None, save=nothing, **changes):
        """Trains the program of `program_of`, or with the trainer `of`."""
        self.trainer = of or Trainer(program_of(training, **changes))
        self.program = self.trainer.program
        self.job, self.traces = self.program.job, self.program.job.traces
        self.chunks, self.losses, self.steps = [], [], []
        state = self.trainer.init()
        self.begun = jax.device_get(state)

        def report(step, chunk, counters, seconds, metrics, ended):
            self.chunks.append(chunk)
            if metrics is not None:
                self.steps.append(step)
                self.losses.append(metrics["train_loss"])

        self.state = loop.run(
            self.trainer,
            state,
            save=save,
            report=report,
            checkpoint_every=8,
        )

    @property
    def params(self):
        """The parameters, [seeds, rates, ...], if a task has one array of them."""
        (leaf,) = jax.tree.leaves(self.state.model.params)
        return np.asarray(leaf)

    @property
    def curve(self):
        """(seconds, training loss) by evaluation, of the first seed and cell."""
        seconds = [float(self.job.seconds(step)[0]) for step in self.steps]
        return seconds, [float(losses[0, 0]) for losses in self.losses]
