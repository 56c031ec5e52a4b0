"""Training: many trials of a row at once, on the same batches from the same workers."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import delayjax as dj
from experiments.comparison import spaces
from experiments.comparison.cures import Cure, Optimizer, Trial
from experiments.tasks.task import Task
from experiments.training.rules import data_seed, was_applied

NO_DELAY = "no delay"


def clusters() -> dict[str, dj.cluster.Cluster]:
    """The clusters of the comparison by name: of 1, 5 and 17 workers.

    A gradient is applied when it arrives, so the mean staleness of P workers is P - 1.

    | name | service times | staleness |
    |---|---|---|
    | no delay | | 0 |
    | constant | all equal | P - 1 |
    | memoryless | exponential | geometric, P - 1 in the mean |
    | straggler | lognormal, a spread of 0.3 | of one worker 5 times slower, large |
    | heavy tails | Pareto of shape 1.5, the same straggler | large, now and then |
    """
    made = dj.cluster.Cluster
    exponential, constant = dj.cluster.exponential(1.0), dj.cluster.constant(1.0)
    lognormal, pareto = dj.cluster.lognormal(1.0, 0.3), dj.cluster.pareto(1 / 3, 1.5)
    return {
        NO_DELAY: made(1, constant),
        "constant, 4": made(5, constant),
        "memoryless, 4": made(5, exponential),
        "straggler, 4": made(5, lognormal, slowdown=[1.0] * 4 + [5.0]),
        "constant, 16": made(17, constant),
        "memoryless, 16": made(17, exponential),
        "heavy tails, 16": made(17, pareto, slowdown=[1.0] * 16 + [5.0]),
    }


class State(NamedTuple):
    """A training."""

    params: Any
    opt_state: Any
    copies: Any  # the parameters that each worker read, leaves [most workers, ...]
    numbers: jax.Array  # the version of each copy, int32 [most workers]
    version: jax.Array  # updates applied, int32 []


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A task, trained with late gradients from clusters.

    Attributes:
        task: what is minimized. Its model has no state, and its loss no key.
        budget: gradients that are evaluated, in all.
        shape: updates -> (step -> factor of the learning rate).
        metric: the loss that is compared, at the end.
        clusters: by name. One gradient an update, applied as it arrives.
    """

    task: Task
    budget: int
    shape: Callable[[int], optax.Schedule] = lambda updates: lambda step: 1.0
    metric: str = "train_loss"
    clusters: Mapping[str, dj.cluster.Cluster] = dataclasses.field(
        default_factory=clusters
    )

    @property
    def most(self) -> int:
        """The most workers of a cluster."""
        return max(own.workers for own in self.clusters.values())

    def losses(
        self,
        optimizer: Optimizer,
        cure: Cure,
        cluster: str,
        numbers: Mapping[str, np.ndarray],
        seed: int,
        *,
        capped: bool = True,
    ) -> np.ndarray:
        """Trains, and returns the losses at the end.

        A seed decides on the first parameters, the batches and the workers' times: they
        are the same for all trials, and all rows.

        Args:
            optimizer: of the trials.
            cure: with the optimizer.
            cluster: its name.
            numbers: {name: values [n]} of the trials.
            seed: of all.
            capped: whether a training that diverges, or ends above its first loss, has
                the loss that it began with.

        Returns:
            float64 [n].
        """
        updates = round(self.budget / cure.gradients)
        program = _program(self, optimizer, cure.make, cure.output, updates)
        batches, begin = _given(self, seed)
        ends = program(
            {name: jnp.asarray(own, jnp.float32) for name, own in numbers.items()},
            jnp.int32(self.clusters[cluster].workers - 1),
            begin,
            _arrivals(self, cluster, seed)[:updates],
            jax.tree.map(lambda leaf: leaf[:updates], batches),
        )
        ends = np.asarray(ends, float)
        if not capped:
            return ends
        most = _first_loss(self, seed)
        return np.where(np.isfinite(ends) & (ends < most), ends, most)

    @functools.cached_property
    def _server_batch(self) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], self.task.batches(0, 0, 1))

    def server_loss(self, params: Any) -> jax.Array:
        """The loss on one batch, the server's own data."""
        return self.task.loss(params, self._server_batch)


@functools.cache
def _program(
    setting: Setting,
    optimizer: Optimizer,
    make: Callable[[Trial], optax.GradientTransformation],
    output: Callable[[Any, Any], Any],
    updates: int,
) -> Callable[..., jax.Array]:
    """The training of several trials, compiled once for each number of them."""
    shape = setting.shape(updates)
    grad_fn = jax.value_and_grad(setting.task.loss)

    def train(numbers, mean, begin, workers, batches):
        trial = Trial(
            optimizer, numbers, shape, mean, setting.most, setting.server_loss
        )
        tx = optax.with_extra_args_support(make(trial))

        def update(state, given):
            worker, batch = given
            read = jax.tree.map(lambda leaf: leaf[worker], state.copies)
            value, grads = grad_fn(read, batch)
            updates, opt_state = tx.update(
                grads,
                state.opt_state,
                state.params,
                staleness=state.version - state.numbers[worker],
                stale_params=read,
                worker=worker,
                value=value,
            )
            applied = was_applied(opt_state)
            params = optax.apply_updates(state.params, updates)
            if applied is not True:
                params = optax.tree.where(applied, params, state.params)
            version = state.version + applied
            return State(
                params=params,
                opt_state=opt_state,
                copies=jax.tree.map(
                    lambda kept, new: kept.at[worker].set(new),
                    *(state.copies, params),
                ),
                numbers=state.numbers.at[worker].set(version),
                version=version,
            ), None

        state = State(
            params=begin,
            opt_state=tx.init(begin),
            copies=jax.tree.map(
                lambda leaf: jnp.broadcast_to(leaf, (setting.most, *leaf.shape)), begin
            ),
            numbers=jnp.zeros(setting.most, jnp.int32),
            version=jnp.zeros((), jnp.int32),
        )
        state, _ = jax.lax.scan(update, state, (workers, batches))
        evaluated = output(state.params, state.opt_state)
        return setting.task.evaluate(evaluated)[setting.metric]

    return jax.jit(jax.vmap(train, in_axes=(0, None, None, None, None)))


@functools.lru_cache(maxsize=32)
def _given(setting: Setting, seed: int) -> tuple[Any, Any]:
    """The batches and the first parameters."""
    batches = setting.task.batches(data_seed(seed), 0, setting.budget)
    begin = jax.jit(setting.task.init)(jax.random.key(seed))
    return jax.tree.map(jnp.asarray, batches), begin


@functools.cache
def _first_loss(setting: Setting, seed: int) -> float:
    _, begin = _given(setting, seed)
    return float(jax.jit(setting.task.evaluate)(begin)[setting.metric])


@functools.cache
def _arrivals(setting: Setting, cluster: str, seed: int) -> np.ndarray:
    """The worker of each gradient, int32 [budget]."""
    own = setting.clusters[cluster]
    protocol = dj.cluster.protocols.k_batch_async(1)
    trace = dj.cluster.simulate(own, protocol, setting.budget, seed=seed)
    return trace.worker.astype(np.int32)


def of_points(
    setting: Setting, optimizer: Optimizer, cure: Cure, cluster: str
) -> Callable[[np.ndarray, Any], np.ndarray]:
    """(points [n, dimensions] as shares, seeds) -> losses [n, seeds]."""
    space = cure.whole_space(optimizer)

    def losses(points, seeds):
        numbers = spaces.values(space, points)
        each = [
            setting.losses(optimizer, cure, cluster, numbers, seed) for seed in seeds
        ]
        return np.stack(each, axis=1)

    return losses
