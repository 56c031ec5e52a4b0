"""Does DASA's rate follow the mean delay, where a few delays are very long?

Linear TD(0) along a random walk through ten states: the parameters of a value function
begin far from their fixed point, and updates are counted until they are near it. Delays
have a mean of 5: all are 5, or one in ten is 50, or one in a hundred is 500. Plain
stochastic approximation uses each gradient; DASA (Dal Fabbro et al., arXiv:2403.17247)
drops those whose parameters have moved too far since. Both have the same step.

    python -m experiments.main --config=configs/dasa.py --workdir=runs/dasa
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

import delayjax as dj
from experiments import Claim, Experiment, configs, figures, tasks
from experiments.results import analysis
from experiments.results.measures import mean, ratio


def get_config() -> ConfigDict:
    """Two rules under three laws of delays with one mean."""
    return ConfigDict(
        dict(
            mean_delay=5,  # updates
            largest=(5, 50, 500),  # updates; one delay in largest / mean_delay
            reach=20.0,  # of DASA: threshold / step
            learning_rate=0.2,
            distance=5000.0,  # in each parameter, from the fixed point, at the start
            target=10.0,  # distance from the fixed point that counts as near
            discount=0.9,  # of TD
            updates=2500,
            seeds=10,
        )
    )


def td(discount: float, distance: float, updates: int) -> tasks.Task:
    """TD(0) with 4 features of norm 1, on a chain of 10 states.

    The fixed point solves A x = b, with A = Phi' D (Phi - gamma P Phi), b = Phi' D r
    and D the chain's stationary law. A seed is a walk.
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

    return tasks.Task(
        init=lambda key: jnp.asarray(solution + distance),
        loss=loss,
        batches=batches,
        evaluate=evaluate,
    )


def experiment(config: ConfigDict) -> Experiment:
    """One program: a reach without bound is plain stochastic approximation."""
    max_delay = configs.check_delays("largest", config.largest, config.updates)
    if not (min(config.reach, config.target) > 0 and 0 <= config.discount < 1):
        raise ValueError(
            "config.reach and config.target must be positive and config.discount in"
            f" [0, 1), got {config.reach}, {config.target} and {config.discount}."
        )
    if not 0 < config.mean_delay <= min(config.largest):
        raise ValueError(
            "config.mean_delay must be positive and at most the smallest of"
            f" config.largest = {config.largest}, got {config.mean_delay}."
        )

    def late(largest, rule, key):
        def delay(step):
            draw = jax.random.uniform(jax.random.fold_in(key, step))
            return jnp.where(draw < config.mean_delay / largest, largest, 0)

        rate = config.learning_rate
        dasa = dj.step_sizes.dasa(rate, rule)
        return dj.delayed(
            optax.chain(dasa, optax.sgd(rate)),
            delay,
            max_delay=max_delay,
            keep_params=True,
        )

    def updates_of(rule, largest):
        """Until it is near; inf where some seed never is."""

        def measure(found):
            curves = analysis.where(found.curves, rule=rule, largest=largest)
            when = analysis.time_to(curves, "distance", config.target, along="update")
            return float(when.mean())

        return measure

    def compared(above, below, **bound):
        text = "Updates until near, {}, largest delay {}, / {}, {}"
        measure = ratio(updates_of(*above), updates_of(*below))
        return Claim(text.format(*above, *below), measure, **bound)

    near = figures.TimeTo("distance", config.target, along="update")
    return Experiment(
        question="Does DASA follow the mean delay, where a few delays are very long?",
        task=td(config.discount, config.distance, config.updates),
        training=late,
        grid={
            "rule": {"plain": 1e30, "DASA": config.reach},
            "largest": config.largest,
        },
        seeds=config.seeds,
        updates=config.updates,
        evaluate_every=5,
        claims=[
            Claim(
                "Mean delay, where the largest is 500, in updates",
                mean("staleness_mean", largest=500),
                about=5.0,
                within=1.0,
            ),
            compared(("DASA", 500), ("DASA", 5), at_most=0.5),
            compared(("DASA", 50), ("DASA", 5), at_most=0.5),
            compared(("plain", 500), ("plain", 5), at_least=1.5),
            compared(("DASA", 500), ("plain", 500), at_most=0.7),
            compared(("DASA", 5), ("plain", 5), about=3.5, within=1.5),
        ],
        figures=[
            figures.over(
                "largest",
                near,
                fixed=False,
                color="rule",
                title="How many updates until the parameters are near?",
                x_label="largest delay (updates)",
            ),
            figures.curves(
                "distance",
                panels="largest",
                color="rule",
                title="How do the parameters come near their fixed point?",
            ),
        ],
        notes=(
            "With a largest delay of 500 plain stochastic approximation needs twice as"
            " many updates as with a constant delay of 5, 700 in place of 360: each"
            " gradient of the far beginning throws it back. DASA drops these and needs"
            " 380. Of the laws with one mean the longest delays cost DASA least. But"
            " where all gradients are 5 late it needs 1260, 3.5 times as many as plain"
            " steps: after each large step it drops those that missed it, 37 % in all."
        ),
    )
