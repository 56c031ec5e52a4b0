"""Rules for stale gradients on equal terms: the same trials, on the same clusters.

A trial is a learning rate and, for a rule that has a number of its own, one value of
it. All rules with the same optimizer try the same learning rates.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd

import delayjax as dj
from experiments import figures
from experiments.comparison.cures import CURES, Cure, Optimizer, Trial
from experiments.results import analysis
from experiments.results.claims import Claim
from experiments.results.runs import Run
from experiments.results.tables import Found
from experiments.running.costs import bytes_of
from experiments.tasks.task import Task
from experiments.training import Simulation, along
from experiments.training.experiment import Arm, Experiment
from experiments.training.rules import begun, loss_and_gradients

PLAIN = "plain"
NO_DELAY = "no delay"


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

    Raises:
        ValueError: if the delays are not different positive integers.
    """
    whole = all(isinstance(delay, int) and delay > 0 for delay in delays)
    if not delays or not whole or len(set(delays)) < len(delays):
        raise ValueError(
            f"`delays` must be different positive integers, got {tuple(delays)}:"
            " training without delay is always compared."
        )

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


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rules that are compared on a task, with the same number of trials each.

    Trial i of n has the learning rate low (high / low)^((i + 1/2) / n), and the i-th
    number of a van der Corput sequence places the rule's own number in its range.

    Attributes:
        task: what is minimized.
        optimizers: by name.
        clusters: {name: (P, cluster)}, `NO_DELAY` among them: plain alone is tried
            there.
        trials: of each rule with each optimizer on each cluster.
        shape: step -> factor of the learning rate, a warm-up or a decay.
        metric: the loss that is compared.
        cures: the rules; `PLAIN` is one of them.
    """

    task: Task
    optimizers: Mapping[str, Optimizer]
    clusters: Mapping[str, tuple[int, Simulation]]
    trials: int
    shape: optax.Schedule = lambda step: 1.0
    metric: str = "train_loss"
    cures: Sequence[Cure] = CURES

    def __post_init__(self):
        if self.trials < 2:
            raise ValueError(
                f"`trials` must be at least 2, got {self.trials}: a rule is tuned."
            )

    @property
    def pairs(self) -> dict[tuple[str, str], tuple[Optimizer, Cure]]:
        """Each optimizer with each rule that goes with it, by their names."""
        return {
            (name, cure.name): (optimizer, cure)
            for name, optimizer in self.optimizers.items()
            for cure in self.cures
            if cure.optimizers is None or name in cure.optimizers
        }

    def experiment(self, **options: Any) -> Experiment:
        """All pairs as an experiment with a table and a figure of what they win back.

        Args:
            **options: of `Experiment`: question, seeds, updates and more.
        """
        shares = figures.shares(
            self.won_back,
            title="What a rule wins back of the loss that lateness costs",
            x_label="share won back (0 % is plain delay with a tuned step)",
        )
        caption = (
            "Excess loss over no delay, and the share of plain delay's that a rule wins"
            " back: means over all late clusters, 95 % intervals over seeds"
        )
        return Experiment(
            task=self.task,
            arms=self.arms(),
            evaluations=3,  # the last one counts
            figures=[shares],
            tables=[figures.Table("rules", caption, self.table)],
            **options,
        )

    def arms(self) -> list[Arm]:
        """An arm for each pair."""
        numbers = {name: i for i, name in enumerate(self.clusters)}
        late = {name: i for name, i in numbers.items() if name != NO_DELAY}
        sources = {name: source for name, (_, source) in self.clusters.items()}
        return [
            Arm(
                training=along(sources, self._maker(*self.pairs[name, rule])),
                labels={"optimizer": name, "rule": rule},
                grid={
                    "learning_rate": self._rates(optimizer),
                    "cluster": numbers if rule == PLAIN else late,
                },
            )
            for (name, rule), (optimizer, _) in self.pairs.items()
        ]

    def _rates(self, optimizer: Optimizer) -> tuple[float, ...]:
        shares = (np.arange(self.trials) + 0.5) / self.trials
        return tuple(map(float, spaced(optimizer.learning_rate, shares)))

    def _maker(self, optimizer: Optimizer, cure: Cure) -> Any:
        """(learning rate, cluster) -> the server's optimizer."""
        rates = jnp.asarray(self._rates(optimizer))
        own = spaced(cure.strength or (1.0, 1.0), van_der_corput(self.trials))
        strengths = jnp.asarray(own, jnp.float32)
        workers = [count for count, _ in self.clusters.values()]
        loss = self._loss()

        def make(learning_rate, cluster):
            # a trial is known by its learning rate
            trial = jnp.argmin(jnp.abs(rates / learning_rate - 1))
            return cure.make(
                Trial(
                    optimizer=optimizer,
                    rate=learning_rate,
                    shape=self.shape,
                    strength=strengths[trial],
                    cluster=cluster,
                    workers=workers,
                    loss=loss,
                )
            )

        return make

    def _loss(self) -> Any:
        """Parameters -> the loss on one batch, the server's own data."""
        key = jax.random.key(0)
        batch = jax.tree.map(lambda x: x[0], self.task.batches(0, 0, 1))
        begin = begun(self.task, key)

        def loss(params):
            model = begin._replace(params=params)
            return loss_and_gradients(self.task, model, batch, key)[0]

        return loss

    def memory(self) -> dict[tuple[str, str], float]:
        """{pair: gradients that its state has more than the state of plain}."""
        params = jax.eval_shape(lambda: begun(self.task, jax.random.key(0)).params)

        def kept(name, rule):
            optimizer, cure = self.pairs[name, rule]
            tx = self._maker(optimizer, cure)(self._rates(optimizer)[0], 0)
            return bytes_of(jax.eval_shape(tx.init, params)) / bytes_of(params)

        return {pair: kept(*pair) - kept(pair[0], PLAIN) for pair in self.pairs}

    def won_back(self, found: Found | Run, *, draws: int = 2000) -> pd.DataFrame:
        """What each rule wins back of the loss that lateness costs, the best first.

        With L(rule) the mean loss over all late clusters, each at its best trial, which
        was chosen on these same seeds,

            excess     = L(rule) - L(plain, no delay)
            won back   = (L(plain) - L(rule)) / (L(plain) - L(plain, no delay))

        in intervals of 95 % over seeds, drawn together. A diverged cell has the loss
        that it began with.

        Args:
            found: the tables of these arms.
            draws: of the bootstrap.

        Returns:
            One row a pair: `excess`, `won_back`, their ends `_low` and `_high`, and
            `least_at`, the cluster where the rule wins back least.
        """
        series = ["optimizer", "rule", "cluster"]
        best = analysis.best(
            found.results, "learning_rate", by=self.metric, series=series
        )
        start = found.curves[found.curves["update"] == 0]
        most = best["optimizer"].map(start.groupby("optimizer")[self.metric].max())
        loss = best[self.metric]
        lost = (best["diverged"] > 0) | ~np.isfinite(loss) | (loss > most)
        losses = best.assign(loss=loss.where(~lost, most)).pivot_table(
            index="seed", columns=series, values="loss"
        )
        drawn = np.random.default_rng(0).integers(
            len(losses), size=(draws, len(losses))
        )
        rows = []
        for name, rule in self.pairs:
            none = losses[name, PLAIN, NO_DELAY].to_numpy()
            plain = losses[name, PLAIN].drop(columns=NO_DELAY)
            own = losses[name, rule][plain.columns]
            excess = own.mean(axis=1).to_numpy() - none
            saved = (plain.mean(axis=1) - own.mean(axis=1)).to_numpy()
            cost = plain.mean(axis=1).to_numpy() - none
            shares = saved[drawn].mean(axis=1) / cost[drawn].mean(axis=1)
            each = (plain - own).mean() / (plain.mean() - none.mean())
            rows.append(
                {
                    "optimizer": name,
                    "rule": rule,
                    "excess": excess.mean(),
                    **_ends("excess", excess[drawn].mean(axis=1)),
                    "won_back": saved.mean() / cost.mean(),
                    **_ends("won_back", shares),
                    "least_at": each.idxmin(),
                }
            )
        table = pd.DataFrame(rows)
        order = {name: i for i, name in enumerate(self.optimizers)}
        return table.sort_values(
            ["optimizer", "excess"],
            ignore_index=True,
            key=lambda own: own.map(order) if own.name == "optimizer" else own,
        )

    def cost(self, optimizer: str, *, about: float, within: float) -> Claim:
        """What lateness costs an optimizer, as a claim."""
        return Claim(
            f"Loss that lateness costs {optimizer}, nats",
            self._cell(optimizer, PLAIN, "excess"),
            about=about,
            within=within,
        )

    def share(self, optimizer: str, rule: str, *, about: float, within: float) -> Claim:
        """What share a rule wins back, as a claim."""
        return Claim(
            f"Share that {rule} wins back with {optimizer}",
            self._cell(optimizer, rule, "won_back"),
            about=about,
            within=within,
        )

    def _cell(self, optimizer: str, rule: str, column: str) -> Callable[[Found], float]:
        """A number of the table."""

        def measure(found):
            table = self.won_back(found).set_index(["optimizer", "rule"])
            return float(table.loc[(optimizer, rule), column])

        return measure

    def table(self, run: Run) -> pd.DataFrame:
        """`won_back` as a report shows it, with the memory and the time of an update.

        The time is from this run's fastest chunk, for one cell.
        """
        memory, times = self.memory(), _times(run)

        def shown(row, name, form):
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            return f"{row[name]:{form}} ({low:{form}} to {high:{form}})"

        rows = []
        for row in self.won_back(run).to_dict("records"):
            pair = row["optimizer"], row["rule"]
            rows.append(
                {
                    "optimizer": row["optimizer"],
                    "rule": row["rule"],
                    "excess loss": shown(row, "excess", ".3f"),
                    "won back": shown(row, "won_back", ".0%"),
                    "least at": row["least_at"],
                    "more memory (gradients)": round(memory[pair], 2),
                    "time / plain's": round(times[pair] / times[pair[0], PLAIN], 2),
                }
            )
        return pd.DataFrame(rows)


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


def _ends(name: str, drawn: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(drawn, (2.5, 97.5))
    return {f"{name}_low": low, f"{name}_high": high}


def _times(run: Run) -> pd.Series:
    """Seconds of an update of one cell, by optimizer and rule: the fastest chunk."""
    cells = {own["name"]: own["cells"] for own in run.info["programs"]}
    rows = [
        {
            **{key: cells[row["program"]][0][key] for key in ("optimizer", "rule")},
            "seconds": 1 / row["updates_per_second"] / len(cells[row["program"]]),
        }
        for row in run.metrics
        if "updates_per_second" in row
    ]
    return pd.DataFrame(rows).groupby(["optimizer", "rule"])["seconds"].min()
