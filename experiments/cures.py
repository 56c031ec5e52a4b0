"""The published rules for stale gradients, compared on equal terms.

Every rule gets the same number of trials on the same clusters. A trial is a learning
rate and, for a rule that has a number of its own, one value of it. All rules with the
same optimizer try the same learning rates.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import delayjax as dj
from experiments import analysis
from experiments.experiment import Arm
from experiments.records import Run
from experiments.tasks.task import Task
from experiments.training import Simulation, along
from experiments.training.rules import begun, loss_and_gradients

PLAIN = "plain"
NO_DELAY = "no delay"


class Optimizer(NamedTuple):
    """An optimizer that rules are combined with.

    Attributes:
        direction: momentum -> a transformation of gradients into directions; the
            update is the direction times minus the learning rate.
        momentum: by default.
        learning_rate: the smallest and the largest that are tried.
    """

    direction: Callable[[Any], optax.GradientTransformation]
    momentum: float
    learning_rate: tuple[float, float]


class Trial(NamedTuple):
    """What a rule is made of, in one cell of the grid."""

    optimizer: Optimizer
    rate: Any  # the learning rate, may be traced
    shape: optax.Schedule  # step -> factor of the learning rate
    strength: Any  # the rule's own number, may be traced
    cluster: Any  # its number, may be traced
    workers: Sequence[int]  # P of each cluster
    gradient: Callable[[Any], Any]  # parameters -> gradient on data of the server's own

    @property
    def here(self) -> Any:
        """P, the number of workers; the mean staleness is P - 1. May be traced."""
        return jnp.asarray(self.workers)[self.cluster]

    def schedule(self, step: Any) -> Any:
        """The learning rate at a step."""
        return self.rate * self.shape(step)

    def descent(
        self, *before: Any, after: Sequence[Any] = (), momentum: Any = None
    ) -> optax.GradientTransformation:
        """The optimizer, with rules before it and after it."""
        momentum = self.optimizer.momentum if momentum is None else momentum
        rate = optax.scale_by_learning_rate(self.schedule)
        return optax.chain(*before, self.optimizer.direction(momentum), rate, *after)

    def stepped(self, rule: Any, *, direction: Any = None) -> Any:
        """The optimizer with a rule in place of the learning rate."""
        if direction is None:
            direction = self.optimizer.direction(self.optimizer.momentum)
        return optax.chain(direction, rule, optax.scale_by_schedule(self.shape))


@dataclasses.dataclass(frozen=True)
class Cure:
    """A published rule for stale gradients.

    Attributes:
        name: in tables.
        make: trial -> the server's optimizer.
        strength: the range of the rule's own number, tried evenly in its logarithm;
            None where it has none.
        optimizers: the names of those that it goes with; by default all.
    """

    name: str
    make: Callable[[Trial], optax.GradientTransformation]
    strength: tuple[float, float] | None = None
    optimizers: Sequence[str] | None = None


def behind(law: Callable[[Trial], Any]) -> Callable[[Trial], Any]:
    """A law behind the optimizer: a factor of its learning rate."""
    return lambda t: t.descent(after=[dj.scale_by_staleness(law(t))])


def _kardam(t: Trial) -> optax.GradientTransformation:
    """Its filter against as many attackers as it bears. There are none."""
    most = max(t.workers)  # workers that never send do not count in its quantile
    return dj.kardam(
        t.descent(),
        workers=most,
        attackers=(most - 1) // 3,
        frequency=False,
        patience=t.here,
    )


def _zeno(t: Trial) -> optax.GradientTransformation:
    return dj.zeno_plus_plus(
        t.descent(),
        t.gradient,
        learning_rate=t.rate,
        rho=t.strength * t.rate,
        eps=0.0,
        refresh_every=10,
    )


_SGD = ("sgd",)  # the rule has an optimizer of its own, or is made for this one

CURES = (
    Cure(PLAIN, lambda t: t.descent()),
    Cure("less momentum", lambda t: t.descent(momentum=1 - t.strength), (0.1, 1.0)),
    Cure(
        "clipping",
        lambda t: t.descent(optax.clip_by_global_norm(t.strength)),
        (0.03, 3.0),
    ),
    # step sizes
    Cure("inverse law", behind(lambda t: dj.modulation.inverse)),
    Cure(
        "inverse law, first",
        lambda t: t.descent(dj.scale_by_staleness(dj.modulation.inverse)),
    ),
    Cure(
        "polynomial law",
        behind(lambda t: dj.modulation.polynomial(t.strength)),
        (0.1, 2.0),
    ),
    Cure(
        "hinge law",
        behind(lambda t: dj.modulation.hinge(t.strength, t.here - 1)),
        (0.03, 3.0),
    ),
    Cure(
        "exponential law",
        behind(lambda t: dj.modulation.exponential(t.strength / t.here)),
        (0.1, 3.0),
    ),
    Cure("capped law", behind(lambda t: dj.modulation.capped(t.here))),
    Cure(
        "delay-adaptive law",
        behind(
            lambda t: dj.modulation.delay_adaptive(
                t.rate, t.here, bound=t.strength * t.rate * t.here
            )
        ),
        (0.1, 3.0),
    ),
    Cure(
        "adaptive 1",
        lambda t: t.stepped(
            dj.step_sizes.adaptive_1(
                t.rate * t.here, 4 * max(t.workers), share=t.strength
            )
        ),
        (0.1, 0.95),
    ),
    Cure(
        "adaptive 2",
        lambda t: t.stepped(
            dj.step_sizes.adaptive_2(t.rate * t.here, 4 * max(t.workers))
        ),
    ),
    Cure(
        "AdaDelay",
        lambda t: t.stepped(
            dj.step_sizes.adadelay(0.1 / t.rate, t.strength / t.rate),
            direction=optax.identity(),
        ),
        (0.0003, 0.03),
        _SGD,
    ),
    Cure(
        "distance cap",
        lambda t: t.stepped(dj.step_sizes.distance_capped(t.rate, t.rate * t.strength)),
        (0.001, 3.0),
    ),
    Cure(
        "DASA",
        lambda t: t.descent(dj.step_sizes.dasa(t.rate, t.strength)),
        (1.0, 300.0),
    ),
    Cure(
        "DASGD",
        lambda t: dj.step_sizes.dasgd(dj.step_sizes.harmonic(t.rate * t.strength)),
        (10.0, 1000.0),
        _SGD,
    ),
    # corrections
    Cure("DC-ASGD-c", lambda t: t.descent(dj.compensate_delay(t.strength)), (0.01, 10)),
    Cure(
        "DC-ASGD-a",
        lambda t: t.descent(dj.compensate_delay(t.strength, adaptive=True)),
        (0.03, 10.0),
    ),
    Cure("Gap-Aware", lambda t: t.descent(dj.gap_aware(t.schedule))),
    # momentum
    Cure(
        "DANA",
        lambda t: optax.chain(
            dj.dana(t.optimizer.momentum, workers=max(t.workers)),
            optax.scale_by_learning_rate(t.schedule),
        ),
        optimizers=_SGD,
    ),
    Cure(
        "closed loop",
        lambda t: dj.closed_loop_momentum(t.schedule, 1 - t.strength),
        (0.05, 1.0),
        _SGD,
    ),
    Cure(
        "YellowFin",
        lambda t: t.stepped(
            dj.yellowfin(factor=10 * t.rate, closed_loop=True),
            direction=optax.identity(),
        ),
        optimizers=_SGD,
    ),
    # refusals
    Cure(
        "drop stale",
        lambda t: dj.drop_stale(t.descent(), t.strength * t.here),
        (0.3, 3.0),
    ),
    Cure("Kardam's filter", _kardam),
    Cure("Zeno++", _zeno, (0.001, 1.0)),
)
"""The rules, each as its paper has it but for a range of its own number."""


def clusters(
    delays: Sequence[int], *, slowest: float = 5.0
) -> dict[str, tuple[int, Simulation]]:
    """Clusters of P = delay + 1 workers, {name: (P, cluster)}, and one of one worker.

    A gradient is applied when it arrives, so the mean staleness is P - 1.

    | name | service times | staleness |
    |---|---|---|
    | constant | all equal | P - 1 |
    | geometric | exponential | memoryless, P - 1 in the mean |
    | straggler | lognormal, a spread of 0.3 | of one slow worker, far larger |

    Args:
        delays: mean staleness of each, in updates.
        slowest: how many times slower the slowest worker is.
    """

    def made(workers, service, slowdown=None):
        cluster = dj.cluster.Cluster(workers, service, slowdown=slowdown)
        return workers, Simulation(cluster, dj.cluster.protocols.k_batch_async(1))

    found = {NO_DELAY: made(1, dj.cluster.constant(1.0))}
    for delay in delays:
        workers = delay + 1
        slow = [1.0] * delay + [slowest]
        found |= {
            f"constant, {delay}": made(workers, dj.cluster.constant(1.0)),
            f"geometric, {delay}": made(workers, dj.cluster.exponential(1.0)),
            f"straggler, {delay}": made(workers, dj.cluster.lognormal(1.0, 0.3), slow),
        }
    return found


def arms(
    cures: Sequence[Cure],
    optimizers: Mapping[str, Optimizer],
    clusters: Mapping[str, tuple[int, Simulation]],
    task: Task,
    *,
    trials: int,
    shape: optax.Schedule = lambda step: 1.0,
) -> list[Arm]:
    """An arm for each optimizer and each rule that goes with it.

    Trial i of n has the learning rate low (high / low)^((i + 1/2) / n), and the i-th
    number of a van der Corput sequence places the rule's own number in its range.

    Args:
        cures: the rules; `PLAIN` is one of them.
        optimizers: by name.
        clusters: by name, `NO_DELAY` among them: plain alone is tried there.
        task: what is minimized.
        trials: of each rule with each optimizer on each cluster.
        shape: step -> factor of the learning rate, a warm-up or a decay.
    """
    numbers = {name: i for i, name in enumerate(clusters)}
    late = {name: i for name, i in numbers.items() if name != NO_DELAY}
    workers = [count for count, _ in clusters.values()]
    sources = {name: source for name, (_, source) in clusters.items()}
    key = jax.random.key(0)
    batch = jax.tree.map(lambda x: x[0], task.batches(0, 0, 1))
    begin = begun(task, key)

    def gradient(params):
        _, own, _ = loss_and_gradients(task, begin._replace(params=params), batch, key)
        return own

    def maker(cure, optimizer):
        rates = spaced(optimizer.learning_rate, (np.arange(trials) + 0.5) / trials)
        own = spaced(cure.strength or (1.0, 1.0), van_der_corput(trials))

        def make(learning_rate, cluster):
            # a trial is known by its learning rate
            trial = jnp.argmin(jnp.abs(jnp.asarray(rates) / learning_rate - 1))
            strength = jnp.asarray(own, jnp.float32)[trial]
            return cure.make(
                Trial(
                    *(optimizer, learning_rate, shape, strength),
                    *(cluster, workers, gradient),
                )
            )

        return make, tuple(map(float, rates))

    def size(make, rates):
        """Of the server's state, in gradients."""
        state = jax.eval_shape(lambda: make(rates[0], 0).init(begin.params))
        return _bytes(state) / _bytes(begin.params)

    made = []
    for name, optimizer in optimizers.items():
        plain = size(*maker(CURES[0], optimizer))
        for cure in cures:
            if cure.optimizers is not None and name not in cure.optimizers:
                continue
            make, rates = maker(cure, optimizer)
            labels = {
                "optimizer": name,
                "rule": cure.name,
                "more_memory": round(size(make, rates) - plain, 2),
            }
            grid = {
                "learning_rate": rates,
                "cluster": numbers if cure.name == PLAIN else late,
            }
            training = along(sources, make)
            made.append(Arm(training=training, labels=labels, grid=grid))
    return made


def spaced(ends: tuple[float, float], shares: np.ndarray) -> np.ndarray:
    """Numbers between two ends, at these shares of the way in the logarithm.

    Example:
        >>> spaced((0.01, 1.0), np.array([0.0, 0.5, 1.0])).tolist()
        [0.01, 0.1, 1.0]
    """
    low, high = ends
    return low * (high / low) ** shares


def van_der_corput(count: int) -> np.ndarray:
    """Numbers that fill (0, 1) evenly, however many are taken: 1/2, 1/4, 3/4, 1/8.

    Example:
        >>> van_der_corput(5).tolist()
        [0.5, 0.25, 0.75, 0.125, 0.625]
    """
    digits = [f"{i:b}"[::-1] for i in range(1, count + 1)]
    return np.asarray([int(own, 2) / 2 ** len(own) for own in digits])


def won_back(run: Run, metric: str = "train_loss", draws: int = 2000) -> pd.DataFrame:
    """What each rule wins back of the loss that lateness costs, the best rule first.

    With L(rule) the mean loss over all late clusters, each at its best trial, which was
    chosen on the other seeds,

        excess     = L(rule) - L(plain, no delay)
        won back   = (L(plain) - L(rule)) / (L(plain) - L(plain, no delay))

    in intervals of 95 % over seeds, drawn together. A diverged cell has the loss that
    it began with.

    Args:
        run: of `arms`.
        metric: the loss.
        draws: of the bootstrap.

    Returns:
        One row an optimizer and rule: `excess`, `won_back`, their ends `_low` and
        `_high`, `least_at` (the cluster where the rule wins back least), `memory` (more
        than plain has, in gradients) and `time` (of an update over plain's, the median
        of this run).
    """
    best = analysis.best(
        run.results, by=metric, series=["optimizer", "rule", "cluster"]
    )
    start = run.curves[run.curves["update"] == 0].groupby("optimizer")[metric].max()
    most = best["optimizer"].map(start)
    lost = (best["diverged"] > 0) | ~np.isfinite(best[metric]) | (best[metric] > most)
    best = best.assign(loss=best[metric].where(~lost, most))
    table = best.pivot_table(
        index="seed", columns=["optimizer", "rule", "cluster"], values="loss"
    )
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(table), size=(draws, len(table)))
    times = _times(run)
    memory = run.results.groupby(["optimizer", "rule"])["more_memory"].first()
    rows = []
    for optimizer, rule in dict.fromkeys(column[:2] for column in table):
        none = table[optimizer, PLAIN, NO_DELAY].to_numpy()
        plain = table[optimizer, PLAIN].drop(columns=NO_DELAY)
        own = table[optimizer, rule][plain.columns]
        excess = own.mean(1).to_numpy() - none
        saved = (plain.mean(1) - own.mean(1)).to_numpy()
        cost = plain.mean(1).to_numpy() - none
        share = saved[drawn].mean(1) / cost[drawn].mean(1)
        each = (plain - own).mean() / (plain.mean() - none.mean())
        rows.append(
            {
                "optimizer": optimizer,
                "rule": rule,
                "excess": excess.mean(),
                **_ends("excess", excess[drawn].mean(1)),
                "won_back": saved.mean() / cost.mean(),
                **_ends("won_back", share),
                "least_at": each.idxmin(),
                "memory": memory[optimizer, rule],
                "time": times[optimizer, rule] / times[optimizer, PLAIN],
            }
        )
    return pd.DataFrame(rows).sort_values(["optimizer", "excess"], ignore_index=True)


def _bytes(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def table(run: Run, metric: str = "train_loss") -> pd.DataFrame:
    """`won_back` as a report shows it."""

    def shown(row, name, form):
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        return f"{row[name]:{form}} ({low:{form}} to {high:{form}})"

    return pd.DataFrame(
        {
            "optimizer": row["optimizer"],
            "rule": row["rule"],
            "excess loss": shown(row, "excess", ".3f"),
            "won back": shown(row, "won_back", ".0%"),
            "least at": row["least_at"],
            "more memory (gradients)": f"{row['memory']:.4g}",
            "time / plain's": f"{row['time']:.2f}",
        }
        for row in won_back(run, metric).to_dict("records")
    )


def _ends(name: str, drawn: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {f"{name}_low": low, f"{name}_high": high}


def _times(run: Run) -> pd.Series:
    """Seconds of an update of one cell, by optimizer and rule: the median chunk."""
    cells = {own["name"]: own["cells"] for own in run.info["programs"]}
    rows = [
        {
            **{key: cells[row["program"]][0][key] for key in ("optimizer", "rule")},
            "seconds": 1 / row["updates_per_second"] / len(cells[row["program"]]),
        }
        for row in run.metrics
        if "updates_per_second" in row
    ]
    return pd.DataFrame(rows).groupby(["optimizer", "rule"])["seconds"].median()
