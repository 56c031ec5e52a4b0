"""At which step does a pipeline that never flushes diverge, and can theory say it?

Linear regression on scikit-learn's diabetes data: the model is a chain of ten layers,
one for each feature, and the pipeline cuts it into stages. Full batches, no noise.
Stage s of S works with weights that are S - 1 - s updates old. Three pipelines:
PipeDream (mixed versions of the weights), late gradients of each stage, and vertical
sync, where all stages are S - 1 late. The limit is not fitted: it is

    stability.pipeline_step_limit(Hessian, delay of each coordinate)

which has the same value for mixed versions and for late gradients, and with vertical
sync 2 sin(pi / (2 (2 S - 1))) over the largest eigenvalue of the Hessian. Steps just
below the limit fall, and steps just above it diverge.

    python -m experiments.main --config=configs/pipeline_edge.py \
        --workdir=runs/pipeline_edge
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from sklearn.datasets import load_diabetes

import delayjax as dj
from experiments import Arm, Experiment, Record, analysis, figures, pipelined
from experiments.configs import below_one, positive
from experiments.results.estimates import Measure
from experiments.results.tables import Found
from experiments.tasks import Task

KINDS = ("mixed versions", "late gradients", "vertical sync")


LIMITS = positive("relative_step")
LIMITS |= below_one("momentum")


def get_config() -> ConfigDict:
    """Numbers of stages, and steps around each limit."""
    return ConfigDict(
        dict(
            stages=(1, 2, 5, 10),
            # steps over the computed limit, 4.9 % apart: 0.9763, 1.0242
            relative_step=tuple(np.geomspace(0.5, 2.0, 30).round(4).tolist()),
            momentum=0.0,
            updates=4000,
            seeds=1,
        )
    )


def features() -> np.ndarray:
    """Standardized, float32 [442, 10]."""
    data = load_diabetes(scaled=False).data
    return ((data - data.mean(axis=0)) / data.std(axis=0)).astype(np.float32)


def least_squares() -> Task:
    """1/2 mean (sum_l w_l x_l - y)^2, a layer for each feature; the optimum is 0."""
    x = features()
    optimum = np.random.default_rng(0).normal(size=x.shape[1]).astype(np.float32)
    batch = {"x": x, "y": x @ optimum}

    def block(weight, activation, key):
        """Adds w_l x_l to the sum; the next layer finds its feature in front."""
        rest, total = activation
        return jnp.roll(rest, -1, axis=1), total + weight * rest[:, 0]

    parts = dj.pipelines.Parts(
        embed=lambda p, batch, key: (batch["x"], jnp.zeros(len(x))),
        block=block,
        head=lambda p, activation, batch: (
            0.5 * jnp.mean((activation[1] - batch["y"]) ** 2)
        ),
    )
    return Task(
        init=lambda key: {"embed": {}, "blocks": jnp.zeros(x.shape[1]), "head": {}},
        loss=parts.loss,
        batches=lambda seed, start, stop: jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (stop - start, *leaf.shape)), batch
        ),
        evaluate=lambda params: {"train_loss": parts.loss(params, batch)},
        parts=parts,
    )


def limit_of(kind: str, stages: int, momentum: float) -> float:
    """The computed limit of the learning rate."""
    x = features().astype(np.float64)
    hessian = x.T @ x / len(x)
    own = [stages - 1 - layer * stages // len(hessian) for layer in range(len(hessian))]
    delays = [stages - 1] * len(own) if kind == "vertical sync" else own
    return dj.stability.pipeline_step_limit(hessian, delays, momentum=momentum)


def experiment(config: ConfigDict) -> Experiment:
    """A program for each kind and number of stages."""
    kinds = dict(zip(KINDS, ("mixed", "late", "vertical_sync"), strict=True))

    def arm(kind, stages):
        schedule = dj.pipelines.pipedream(stages)
        make, limit = getattr(dj.pipelines, kinds[kind]), limit_of(kind, stages, beta)

        def training(parts, relative_step):
            return make(parts, optax.sgd(relative_step * limit, beta), schedule)

        return Arm(
            training=pipelined(training), labels=dict(gradients=kind, stages=stages)
        )

    beta = config.momentum
    return Experiment(
        question="At which step does a pipeline that never flushes diverge?",
        task=least_squares(),
        arms=[arm(kind, stages) for kind in KINDS for stages in config.stages],
        grid={"relative_step": config.relative_step},
        seeds=config.seeds,
        updates=config.updates,
        answer=lambda found: answer(found, config),
        records=records(config),
        figures=[
            figures.over(
                "relative_step",
                "train_loss",
                color="stages",
                panels="gradients",
                fixed=False,
                x_label="step over the computed limit",
                title="Where does each pipeline diverge?",
            )
        ],
    )


def edge(kind: str, stages: int) -> Measure:
    """The largest step, over the limit, that all below it end lower than they began."""

    def largest(found: Found) -> float:
        cells = analysis.where(found.results, gradients=kind, stages=stages)
        fell = (cells["diverged"] == 0) & (cells["train_loss"] < START)
        worst = fell.groupby(cells["relative_step"]).all()
        return float(worst.index[: int(np.argmin([*worst, False]))].max())

    return largest


START = 1.0
"""A run grows if its loss ends above this number."""


def edges(config: ConfigDict, which: Callable[..., float]) -> Measure:
    """The smallest or largest edge of all pipelines, over its limit."""
    pairs = itertools.product(KINDS, config.stages)
    own = [edge(kind, stages) for kind, stages in pairs]
    return lambda found: which(measure(found) for measure in own)


def records(config: ConfigDict) -> list[Record]:
    """The last step below the limit, where theory is right; no seed varies."""
    return [
        Record("Smallest edge over the limit", edges(config, min), 0.9763, 0.0),
        Record("Largest edge over the limit", edges(config, max), 0.9763, 0.0),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """How far all edges are from the limits, and what stages cost in the step."""
    low, high = edges(config, min)(found), edges(config, max)(found)
    most = max(config.stages)
    first, mixed, synced = (
        limit_of(kind, own, config.momentum)
        for kind, own in (
            ("mixed versions", 1),
            ("mixed versions", most),
            ("vertical sync", most),
        )
    )
    step = 100 * (config.relative_step[1] / config.relative_step[0] - 1)
    return (
        f"The largest step that falls is {low:.3f} to {high:.3f} times the computed"
        f" limit (steps are {step:.1f} % apart). {most} stages allow"
        f" {mixed / first:.3f} of the step of one stage, with vertical sync"
        f" {synced / first:.3f}."
    )
