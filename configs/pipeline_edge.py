"""At which step does a pipeline that never flushes diverge, and does theory predict it?

For linear regression on scikit-learn's diabetes data the model is a chain of ten
layers, one for each feature. The pipeline cuts it into stages. Full batches, no noise.
Stage s of S works with weights that are S - 1 - s updates old. Three pipelines:
PipeDream (mixed versions of the weights), late gradients of each stage, and vertical
sync, where all stages are S - 1 late. The limit is not fitted: it is

    stability.pipeline_step_limit(Hessian, delay of each coordinate)

which has the same value for mixed versions and for late gradients, and with vertical
sync 2 sin(pi / (2 (2 S - 1))) over the largest eigenvalue of the Hessian: 10 stages
allow 0.408 of the step of one stage, and 0.083 with vertical sync.

    python -m experiments.main --config=configs/pipeline_edge.py --workdir=runs/edge
"""

import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict
from sklearn.datasets import load_diabetes

import delayjax as dj
from experiments import Effect, Experiment, figures, percent, pipelined
from experiments.configs import below_one, positive
from experiments.tasks import Task

EDGE = figures.LargestStable("relative_step", below={"train_loss": 1.0})
"""A metric: the largest step, over the limit, up to which the loss ends below 1."""
KINDS = {
    "mixed versions": dj.pipelines.mixed,
    "late gradients": dj.pipelines.late,
    "vertical sync": dj.pipelines.vertical_sync,
}

LIMITS = positive("relative_step") | below_one("momentum")


def get_config() -> ConfigDict:
    """The config: numbers of stages, and steps around each limit."""
    return ConfigDict(
        dict(
            stages=(1, 2, 5, 10),
            # over the computed limit, 4.9 % apart: 0.9763, 1.0242
            relative_step=tuple(np.geomspace(0.5, 2.0, 30).round(4).tolist()),
            momentum=0.0,
            updates=4000,
            seeds=2,  # nothing is random: both give the same
        )
    )


def features() -> np.ndarray:
    """The standardized features, float32 [442, 10]."""
    x = load_diabetes(scaled=False).data
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)


def least_squares() -> Task:
    """The task 1/2 mean (sum_l w_l x_l - y)^2, a layer a feature; the optimum is 0."""
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
        head=lambda p, out, batch: 0.5 * jnp.mean((out[1] - batch["y"]) ** 2),
    )
    return Task(
        init=lambda key: {"embed": {}, "blocks": jnp.zeros(x.shape[1]), "head": {}},
        loss=parts.loss,
        batches=lambda seed, start, stop: {
            k: np.broadcast_to(v, (stop - start, *v.shape)) for k, v in batch.items()
        },
        evaluate=lambda params: {"train_loss": parts.loss(params, batch)},
        parts=parts,
    )


def limit_of(kind: str, stages: int, momentum: float) -> float:
    """The computed limit of the learning rate."""
    x = features().astype(np.float64)
    hessian = x.T @ x / len(x)
    per_layer = [
        stages - 1 - layer * stages // len(hessian) for layer in range(len(hessian))
    ]
    delays = [stages - 1] * len(per_layer) if kind == "vertical sync" else per_layer
    return dj.stability.pipeline_step_limit(hessian, delays, momentum=momentum)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each kind and number of stages."""

    def arm(kind, stages):
        schedule, limit = dj.pipelines.pipedream(stages), limit_of(kind, stages, beta)

        def training(parts, relative_step):
            return KINDS[kind](parts, optax.sgd(relative_step * limit, beta), schedule)

        return dict(gradients=kind, stages=stages), pipelined(training)

    beta = config.momentum
    return Experiment(
        question="At which step does a pipeline that never flushes diverge?",
        task=least_squares(),
        arms=[arm(kind, stages) for kind in KINDS for stages in config.stages],
        grid={"relative_step": config.relative_step},
        seeds=config.seeds,
        tuned="relative_step",
        updates=config.updates,
        answer=Effect(
            metric=EDGE,
            against=lambda: 1.0,
            size=percent(5),
            name="largest step that falls, over the computed limit",
        ),
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
