"""Training whose K follows the loss (AdaSync): updates choose how long they take."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.tasks.task import Task
from experiments.training.rules import (
    Model,
    Plan,
    Rule,
    Update,
    data_seed,
    loss_and_gradients,
)


class Memory(NamedTuple):
    """What a cell keeps beside its parameters."""

    state: Any
    seconds: jax.Array  # simulated
    gradients: jax.Array


def with_held(state: Any, params: Any, key: Any) -> Any:
    """A state of `dj.adasync` with these parameters and this key."""
    return state._replace(training=state.training._replace(params=params, key=key))


@dataclasses.dataclass(frozen=True)
class AdaSync:
    """SGD by `dj.adasync`, whose seconds and gradients a cell measures.

    A model's state has `seconds`, `gradients` (so far) and `k` (now).

    Attributes:
        cluster: that is simulated.
        k: gradients of an update, at first.
        interval_seconds: simulated, between two choices of K; inf keeps it.
        updates: until the end.
    """

    cluster: dj.cluster.Cluster
    k: int
    interval_seconds: float
    updates: int

    def arguments(self) -> dict[str, bool]:
        """The grid axes that it takes."""
        return {"learning_rate": True}

    def rule(self, task: Task, plan: Plan) -> Rule:
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
                seed=0,  # of the workers' times, the same under all seeds
            )

        def apart(state, seconds, gradients):
            """The model beside the memory, where the runner keeps it."""
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

        def given(start, stop, own=None):
            def of(seed):
                drawn = task.batches(data_seed(seed), start * workers, stop * workers)
                return jax.tree.map(
                    lambda x: x.reshape(-1, workers, *x.shape[1:]), drawn
                )

            every = [of(seed) for seed in plan.seeds]
            return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *every)

        def evaluated(model, memory):
            """With what is measured of a cell in its state."""
            own = {"seconds": memory.seconds, "gradients": memory.gradients}
            return Model(model.params, own | {"k": memory.state.k})

        return Rule(
            updates=self.updates,
            evaluate_every=plan.cadence(self.updates),
            init=init,
            update=update,
            given=given,
            depth=lambda memory: 0,
            examples=lambda step: np.full(len(plan.seeds), step * workers),
            model=evaluated,
        )
