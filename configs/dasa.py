"""Do N agents learn N times as fast, where a few messages are very late?

In linear TD(0) each agent walks through ten states, and a server averages the messages
of the agents. Delays have a mean of 5 updates: all are 5, or one in ten is 50. Plain
stochastic approximation uses each message. DASA (Dal Fabbro et al., arXiv:2403.17247)
keeps the messages whose parameters are nearest to the newest parameters: the nearer
half, or all within a reach. The result is the number of updates until the value
function is near its fixed point.

    python -m experiments.main --config=configs/dasa.py --workdir=runs/dasa
"""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, Range, Search, figures
from experiments.configs import at_least, check_delays, positive
from experiments.results.sizes import percent
from experiments.tasks import linear_td
from experiments.training.gradients import optimizer

SMALL = {"updates": 400, "target": 1.0}
"""Values that the small size of the book changes, beside the numbers of seeds."""

LIMITS = at_least(2, "agents") | at_least(1, "one_in") | at_least(0, "mean_delay")
LIMITS |= positive("distance", "target", "tolerance")


def get_config() -> ConfigDict:
    """The config: three rules under two laws of delays with one mean."""
    return ConfigDict(
        dict(
            agents=8,
            mean_delay=5,  # updates
            one_in=(1, 10),  # one in `one_in` messages is late, by one_in * mean_delay
            distance=1.0,  # from the fixed point at the start, in each parameter
            target=0.1,  # distance from the fixed point that counts as near
            updates=8000,
            seeds=20,
            tolerance=0.1,  # tolerance of the search, as a share of the updates
        )
    )


def nearer_half() -> optax.GradientTransformationExtraArgs:
    """A rule that drops the half of messages since which parameters moved furthest."""

    def update(updates, state, params, *, stale_params, **extra_args):
        moved = optax.tree.norm(optax.tree.sub(params, stale_params))
        all_moved = jax.lax.all_gather(moved, "workers")
        median = jnp.median(all_moved)
        factor = (moved <= median) / jnp.mean(all_moved <= median)
        return optax.tree.scale(factor, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def experiment(config: ConfigDict) -> Experiment:
    """The experiment: a program for each rule, and one agent alone."""
    delays = [one_in * config.mean_delay for one_in in config.one_in]
    max_delay = check_delays("one_in", delays, config.updates)

    def arm(rule, agents, kept=None, **grid):
        def late(learning_rate, one_in, key, reach=None):
            def delay(step):
                of_step = jax.random.fold_in(key, step)
                if agents > 1:
                    of_step = jax.random.fold_in(of_step, jax.lax.axis_index("workers"))
                is_late = jax.random.uniform(of_step) * one_in < 1
                return jnp.where(is_late, one_in * config.mean_delay, 0)

            drop = kept if reach is None else dj.step_sizes.dasa(learning_rate, reach)
            mean = dj.exchange.mean if agents > 1 else optax.chain
            tx = optax.chain(drop, mean(optax.sgd(learning_rate)))
            return dj.delayed(tx, delay, max_delay=max_delay, keep_params=True)

        training = optimizer(late, workers=agents)
        labels = {"rule": rule, "agents": agents}
        task = linear_td(agents, distance=config.distance)
        return Arm(training=training, labels=labels, grid=grid, task=task)

    many = config.agents
    near = figures.TimeTo("distance", config.target, along="update")
    return Experiment(
        question="Do N agents learn N times as fast, if a few messages are very late?",
        task=linear_td(many, distance=config.distance),
        arms=[
            arm("plain", 1, optax.identity()),
            arm("plain", many, optax.identity()),
            arm("nearer half", many, nearer_half()),
            arm("reach", many, reach=Range(1.0, 64.0)),
        ],
        grid={"learning_rate": Range(0.002, 0.3), "one_in": config.one_in},
        seeds=config.seeds,
        tuned_by=near,
        search=Search(repeats=2, tolerance=config.tolerance, relative=True),
        updates=config.updates,
        evaluate_every=5,
        answer=[
            Effect(metric=near, against={"agents": 1}, size=percent(10)),
            Effect(metric=near, against={"rule": "plain"}, size=percent(10)),
        ],
        figures=[figures.over("rule", near, panels="one_in", color="agents")],
    )
