"""Training with AdaSync: K follows the loss, so the loss sets how long updates take."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.axis_values import MOST_UPDATES, check_whole
from experiments.training.jobs import (
    Job,
    Model,
    Request,
    Update,
    data_seed,
    loss_and_gradients,
    of_seeds,
)


class Memory(NamedTuple):
    """The state of a cell beside its parameters."""

    state: Any
    seconds: jax.Array  # simulated
    gradients: jax.Array


def with_held(state: Any, params: Any, key: Any) -> Any:
    """A state of `dj.adasync` with these parameters and this key."""
    return state._replace(training=state.training._replace(params=params, key=key))


@dataclasses.dataclass(frozen=True)
class AdaSync:
    """SGD by `dj.adasync`; each cell measures its seconds and its gradients.

    A model's state has `seconds` and `gradients` so far, and the present `k`.

    Attributes:
        cluster: the simulated cluster.
        k: the first number of gradients per update.
        interval_seconds: simulated seconds between two changes of K; with inf K stays.
        updates: the number of updates.
    """

    cluster: dj.cluster.Cluster
    k: int
    interval_seconds: float
    updates: int

    def __post_init__(self):
        check_whole("updates", self.updates, 1, MOST_UPDATES)

    def arguments(self) -> dict[str, bool]:
        """The grid axes that this training takes."""
        return {"learning_rate": True}

    def job(self, task: Task, request: Request) -> Job:
        """The training of a task; see `experiments.training.Rule`."""
        workers = self.cluster.workers

        def grad_fn(params, batch, key):
            loss, grads, _ = loss_and_gradients(task, Model(params), batch, key)
            return loss, grads

        def training(hyper):
            return dj.adasync(
                self.cluster,
                grad_fn,
                optax.sgd(hyper["learning_rate"]),
                scheme=dj.cluster.protocols.k_sync(self.k),
                interval_seconds=self.interval_seconds,
                loss=lambda loss: loss,
                seed=0,  # the workers' times are the same under all seeds
            )

        def apart(state, seconds, gradients):
            """Splits a state into model and memory, as the runner keeps them."""
            model = Model(state.training.params)
            return model, Memory(with_held(state, None, None), seconds, gradients)

        def init(key, hyper, model):
            state = training(hyper).init(model.params, key)
            return apart(state, jnp.zeros(()), jnp.zeros((), jnp.int32))

        def update(key, hyper, step, model, memory, batches):
            state = with_held(memory.state, model.params, key)
            state, report = training(hyper).step(state, batches)
            seconds = memory.seconds + report.seconds
            model, memory = apart(state, seconds, memory.gradients + report.k)
            fresh = jnp.zeros((), jnp.int32)
            return Update(model, memory, report.metrics, report.staleness, fresh)

        def given(start, stop, here=None):
            def batches_of(seed):
                drawn = task.batches(data_seed(seed), start * workers, stop * workers)
                return jax.tree.map(
                    lambda x: x.reshape(-1, workers, *x.shape[1:]), drawn
                )

            return of_seeds(map(batches_of, request.seeds))

        def evaluated(model, memory):
            """The model, with the measurements of its cell as its state."""
            counted = {"seconds": memory.seconds, "gradients": memory.gradients}
            return Model(model.params, counted | {"k": memory.state.k})

        return Job(
            updates=self.updates,
            evaluate_every=request.cadence(self.updates),
            init=init,
            update=update,
            given=given,
            depth=lambda memory: 0,
            examples=lambda step: np.full(len(request.seeds), step * workers),
            model=evaluated,
        )
