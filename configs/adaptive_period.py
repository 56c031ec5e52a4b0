"""Does a period that follows the models' disagreement beat a period that is kept?

Local SGD averages its models every H steps. Adaptive periodic averaging (Jiang and
Agrawal, arXiv:2007.06134) measures how far the models are apart, over the step size, in
the first quarter of the run, and then lengthens H where they are closer than that and
shortens it where they are further apart. Eight workers whose step falls as a cosine, an
MLP on scikit-learn's digits; what is compared is the loss after as many averages.

    python -m experiments.main --config=configs/adaptive_period.py \
        --workdir=runs/adaptive_period
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Experiment, Published, Record, figures, replicas, tasks
from experiments.configs import at_least, positive
from experiments.results.estimates import Measure
from experiments.results.measures import between, mean, ratio, tuned
from experiments.results.tables import Found
from experiments.training import Model, Plan, Rule, methods
from experiments.training.methods import Method

LIMITS = at_least(1, "workers", "period")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """The adaptive period, and five that are kept."""
    return ConfigDict(
        dict(
            workers=8,
            period=(1, 2, 4, 8, 16),  # steps between two averages, kept
            first_period=4,  # of the adaptive one
            learning_rate=(0.1, 0.3, 1.0, 3.0),  # at first
            batch_size=4,  # examples a gradient
            updates=800,  # steps of each worker
            seeds=5,
            tuning_seeds=3,  # that choose the step size, and are not reported
        )
    )


@dataclasses.dataclass(frozen=True)
class Counted:
    """Training of replicas that counts how often they average."""

    training: Any

    def arguments(self) -> dict[str, bool]:
        """The grid axes that it takes."""
        return self.training.arguments()

    def rule(self, task: tasks.Task, plan: Plan) -> Rule:
        """The rule of the replicas, with a count beside their memory."""
        rule = self.training.rule(task, plan)

        def counted(hyper, step, memory):
            """The period, and whether the models were averaged after these steps."""
            if "period" in hyper:
                period, due = hyper["period"], step % hyper["period"] == 0
            else:
                adapted = optax.tree.get(memory.state, "memory")
                period, due = adapted.period, adapted.local_steps == 0
            return jnp.asarray(period, jnp.float32), due

        def init(key, hyper, model):
            model, memory = rule.init(key, hyper, model)
            period, _ = counted(hyper, 0, memory)
            return model, (memory, jnp.zeros(()), period)

        def update(key, hyper, step, model, memory, given):
            memory, averages, _ = memory
            done = rule.update(key, hyper, step, model, memory, given)
            period, due = counted(hyper, step + 1, done.memory)
            return done._replace(memory=(done.memory, averages + due, period))

        def evaluated(model, memory):
            """With what is measured of a cell in its state."""
            memory, averages, period = memory
            state = {"averages": averages, "period_now": period}
            return Model(rule.model(model, memory).params, state)

        return rule._replace(
            init=init,
            update=update,
            model=evaluated,
            depth=lambda memory: rule.depth(memory[0]),
            vmap_axes=lambda memory: (rule.vmap_axes(memory[0]), 0, 0),
        )


def experiment(config: ConfigDict) -> Experiment:
    """Two programs."""
    link = dj.cluster.Communication(latency_seconds=0.0)
    cluster = dj.cluster.Cluster(
        config.workers, dj.cluster.constant(1.0), communication=link
    )
    # the whole method is the workers' optimizer, so that its period can be traced
    as_made = Method(
        lambda inner, now, workers, key: inner, methods.local_sgd(1).timetable
    )

    def cosine(learning_rate):
        return optax.cosine_decay_schedule(learning_rate, config.updates)

    def kept(learning_rate, period):
        return dj.averaging.local_sgd(optax.sgd(cosine(learning_rate)), period=period)

    def adaptive(learning_rate):
        return dj.averaging.adaptive_period(
            optax.sgd(cosine(learning_rate)),
            cosine(learning_rate),
            sampling_steps=config.updates // 4,
            period=config.first_period,
        )

    def measured(name):
        return lambda model, task: model.state[name]

    def arm(make):
        return dict(method=make.__name__), Counted(replicas(as_made, cluster, make))

    return Experiment(
        question="Does a period that follows disagreement beat a period that is kept?",
        task=tasks.digits_mlp(batch_size=config.batch_size),
        arms=[arm(kept), arm(adaptive)],
        grid={"learning_rate": config.learning_rate, "period": config.period},
        seeds=config.seeds,
        tuned="learning_rate",
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        measure={name: measured(name) for name in ("averages", "period_now")},
        answer=lambda found: answer(found, config),
        published=published(config),
        records=records(config),
        figures=[
            figures.over("period", "train_loss", color="method", fixed=False),
            figures.curves(
                "train_loss", against="averages", title="What do averages buy?"
            ),
            figures.curves("period_now", title="How does the period change?"),
        ],
    )


ADAPTIVE = dict(method="adaptive")


def over_kept(metric: str, period: int, **where) -> Measure:
    """A number of the adaptive period over the number of a kept period."""
    measure = mean if where else tuned
    own = measure(metric, **ADAPTIVE, **where)
    return ratio(own, measure(metric, method="kept", period=period, **where))


def published(config: ConfigDict) -> list[Published]:
    """That the period grows, and that less averaging costs no loss."""
    jiang = "Jiang, Agrawal (2020), arXiv:2007.06134"
    return [
        Published(
            text="The adaptive period is longer at the end than at first",
            source=f"{jiang} (as we recall)",
            said="averages are frequent early and rare late",
            measure=tuned("period_now", **ADAPTIVE),
            at_least=config.first_period + 1,
            bound_is_ours=True,
        ),
        Published(
            text="The adaptive period trains as well as averages at each step",
            source=jiang,
            said="1.14 to 1.27 times as fast as SGD with full communication",
            measure=over_kept("train_loss", 1),
            at_most=1.05,
            bound_is_ours=True,
        ),
        Published(
            text="It is faster than averages at each step",
            source=jiang,
            said="1.14 to 1.27 times as fast, half the communication of quantization",
            tried="No time of an average is simulated here; averages are counted.",
        ),
    ]


def records(config: ConfigDict) -> list[Record]:
    """Loss and averages against the first period kept, and at a step of 1."""
    first = config.first_period
    large = over_kept("train_loss", 8, learning_rate=1.0)
    loss, often = over_kept("train_loss", first), over_kept("averages", first)
    return [
        Record(
            "Training loss, adaptive", tuned("train_loss", **ADAPTIVE), 0.08305, 0.0014
        ),
        Record("Training loss, adaptive / first period kept", loss, 0.9943, 0.0018),
        Record("Averages, adaptive / first period kept", often, 0.476, 0.0033),
        Record("Training loss, adaptive / 8 kept, step of 1", large, 0.3475, 0.16),
    ]


def answer(found: Found, config: ConfigDict) -> str:
    """Loss and averages beside the first period kept, tuned and at a large step."""
    first = config.first_period
    tuned_loss = between(over_kept("train_loss", first), found)
    large = between(over_kept("train_loss", 8, learning_rate=1.0), found)
    return (
        f"The training loss of the adaptive period, as a multiple: with the step tuned,"
        f" {tuned_loss} of a period of {first} kept, with"
        f" {over_kept('averages', first)(found):.2f} of its averages; at a step of 1,"
        f" {large} of a period of 8 kept, with"
        f" {over_kept('averages', 8, learning_rate=1.0)(found):.2f} of its averages."
    )
