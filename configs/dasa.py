"""Does DASA's rate follow the mean delay, where a few delays are very long?

Linear TD(0) along a random walk through ten states: the parameters of a value function
begin far from their fixed point, and updates are counted until they are near it. Delays
have a mean of 5: all are 5, or one in ten is 50, or one in a hundred is 500. Plain
stochastic approximation uses each gradient; DASA (Dal Fabbro et al., arXiv:2403.17247)
drops those whose parameters have moved too far since. Step and reach are tuned.

    python -m experiments.main --config=configs/dasa.py --workdir=runs/dasa
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Arm, Effect, Experiment, figures, optimizer, percent, tasks
from experiments.configs import at_least, check_delays, positive

NONE = 1e30  # a reach that drops no gradient; 0.25 drops all that are late


LIMITS = at_least(0, "mean_delay", "target")
LIMITS |= positive("learning_rate")


def get_config() -> ConfigDict:
    """Two rules under three laws of delays with one mean."""
    return ConfigDict(
        dict(
            mean_delay=5,  # updates
            largest=(5, 50, 500),  # updates; one delay in largest / mean_delay
            reach=(0.25, 1.0, 5.0, 20.0, 80.0, 320.0, NONE),  # threshold / step
            learning_rate=(0.1, 0.2, 0.4, 0.8, 1.6),
            distance=5000.0,  # in each parameter, from the fixed point, at the start
            target=10.0,  # distance from the fixed point that counts as near
            updates=2500,
            seeds=10,
            tuning_seeds=3,  # that choose step and reach, and are not reported
        )
    )


def td(distance: float, updates: int, *, discount: float = 0.9) -> tasks.Task:
    """TD(0), 4 features of norm 1, a chain of 10 states; a seed is a walk.

    The fixed point solves A x = b, with A = Phi' D (Phi - gamma P Phi), b = Phi' D r
    and D the chain's stationary law.
    """
    chain = np.random.default_rng(0)
    law = chain.random((10, 10)) ** 3
    law /= law.sum(axis=1, keepdims=True)
    rewards, features = chain.normal(size=10), chain.normal(size=(10, 4))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    weighted = features.T * np.linalg.matrix_power(law, 1000)[0]
    matrix = weighted @ (features - discount * law @ features)
    solution = np.linalg.solve(matrix, weighted @ rewards).astype(np.float32)

    @functools.lru_cache
    def visited(seed):
        states = [0]
        for draw in np.random.default_rng(seed).random(updates):
            states.append(int(np.searchsorted(law[states[-1]].cumsum(), draw)))
        return np.array(states)

    def batches(seed, start, stop):
        now, then = (visited(seed)[start + k : stop + k] for k in (0, 1))
        seen = features[now], features[then], rewards[now]
        return tuple(array.astype(np.float32) for array in seen)

    def loss(x, batch):
        now, then, reward = batch
        wanted = jax.lax.stop_gradient(reward + discount * then @ x)
        return 0.5 * (wanted - now @ x) ** 2

    def evaluate(x):
        away = jnp.linalg.norm(x - solution)
        return {"train_loss": 0.5 * away**2, "distance": away}

    begin = jnp.asarray(solution + distance)
    return tasks.Task(lambda key: begin, loss, batches=batches, evaluate=evaluate)


def experiment(config: ConfigDict) -> Experiment:
    """A program for each rule: a reach without bound is plain approximation."""
    max_delay = check_delays("largest", config.largest, config.updates)
    if not 0 < config.mean_delay <= min(config.largest):
        raise ValueError(f"config.mean_delay must be in (0, {min(config.largest)}].")

    def late(learning_rate, reach, largest, key):
        def delay(step):
            draw = jax.random.uniform(jax.random.fold_in(key, step))
            return jnp.where(draw < config.mean_delay / largest, largest, 0)

        rule = dj.step_sizes.dasa(learning_rate, reach)
        rule = optax.chain(rule, optax.sgd(learning_rate))
        return dj.delayed(rule, delay, max_delay=max_delay, keep_params=True)

    def arm(rule, reach):
        options = dict(labels={"rule": rule}, grid={"reach": reach})
        return Arm(training=optimizer(late), **options)

    near = figures.TimeTo("distance", config.target, along="update")

    def fewer(name, against):
        return Effect(metric=near, against=against, size=percent(10), name=name)

    shown = dict(fixed=False, color="rule", x_label="largest delay (updates)")
    return Experiment(
        question="Does DASA follow the mean delay, where a few delays are very long?",
        task=td(config.distance, config.updates),
        arms=[arm("plain", (NONE,)), arm("DASA", config.reach)],
        grid={"learning_rate": config.learning_rate, "largest": config.largest},
        seeds=config.seeds,
        tuned=("learning_rate", "reach"),
        tuned_by=near,
        tuning_seeds=config.tuning_seeds,
        updates=config.updates,
        evaluate_every=5,
        answer=[
            fewer("updates until near", against={"largest": min(config.largest)}),
            fewer("updates of DASA until near", against={"rule": "plain"}),
        ],
        figures=[
            figures.over("largest", near, **shown, title="Updates until near"),
            figures.best_step("largest", "learning_rate", color="rule"),
        ],
    )
