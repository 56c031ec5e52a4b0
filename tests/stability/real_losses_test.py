"""Real losses diverge under delay where their sharpness says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import delayjax as dj
from delayjax import stability
from experiments import tasks
from tests.stability import growth
from tests.support.cases import shortened
from tests.support.compiled import AS_USUAL


def full_batch(task, *, examples=None):
    """Parameters to begin with, and the loss on all training examples, or the first."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), task.batches(0, 0, 1))
    batch = jax.tree.map(lambda leaf: leaf[:examples], batch)
    return task.init(jax.random.key(0)), lambda params, _: task.loss(params, batch)


def step_of(loss, tx):
    def train_step(carry):
        params, opt_state = carry
        updates, opt_state = tx.update(jax.grad(loss)(params, None), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return train_step


def descended(params, loss, learning_rate, updates):
    train_step = step_of(loss, optax.sgd(learning_rate))
    carry = params, optax.sgd(learning_rate).init(params)
    run = jax.jit(
        lambda carry: jax.lax.fori_loop(0, updates, lambda _, c: train_step(c), carry),
        compiler_options=AS_USUAL,
    )
    return run(carry)[0]


def test_logistic_regression_grows_from_two_per_cent_past_the_prediction():
    # breast cancer, at the optimum: gradient descent in its last digits
    params, loss = full_batch(tasks.breast_cancer(batch_size=0, l2=0.1))
    params = descended(params, loss, 1.0, 2000)
    sharpness = stability.sharpness(loss, params, None)
    delays, momenta = np.array([0, 1, 4, 4]), np.array([0.0, 0.0, 0.0, 0.9])
    limits = [
        stability.learning_rate_limit(
            sharpness, stability.Dynamics(delay, momentum=beta, nesterov=True)
        )
        for delay, beta in zip(delays, momenta, strict=True)
    ]

    def measure(rates, delay, beta):
        def of_rate(rate):
            sgd = optax.sgd(rate, momentum=beta, nesterov=True)
            tx = dj.delayed(sgd, delay, max_delay=4)
            return growth.of_trajectory(
                step_of(loss, tx), (params, tx.init(params)), 1800
            )

        return jax.vmap(of_rate)(rates)

    rates = np.outer(limits, [0.98, 1.02])
    measure = jax.jit(jax.vmap(measure), compiler_options=AS_USUAL)
    below, above = measure(rates, delays, momenta).T
    assert (below < 0).all()
    assert (above > 0).all()


# of an oscillation; over some more the sharpness itself would change
TURNS = 20


@functools.cache
def perceptron():
    """Digits, well on the way down, and the direction that curves most there.

    Earlier in training the sharpness still changes from update to update.
    """
    params, loss = full_batch(tasks.digits_mlp(batch_size=0, width=8), examples=900)
    params = descended(params, loss, 0.2, 3000)

    @jax.jit
    def steepest(params):
        def power(_, vector):
            gradient = jax.grad(lambda params: loss(params, None))
            moved = jax.jvp(gradient, (params,), (vector,))[1]
            return optax.tree.scale(1 / optax.tree.norm(moved), moved)

        return jax.lax.fori_loop(0, 200, power, jax.tree.map(jnp.ones_like, params))

    return params, loss, steepest(params)


@pytest.mark.parametrize("delay", shortened([0, 1, 4, 8, 16], 4))
def test_changes_of_a_perceptron_grow_from_ten_per_cent_past_the_prediction(delay):
    params, loss, direction = perceptron()
    half_turn = 2 * delay + 1

    def heights(rate, start):
        """Of a run, along the direction."""
        tx = dj.delayed(optax.sgd(rate), delay)
        train_step = step_of(loss, tx)

        def update(carry, _):
            carry = train_step(carry)
            return carry, optax.tree.vdot(direction, carry[0])

        begun = (start, tx.init(start))
        _, path = jax.lax.scan(update, begun, length=TURNS * 2 * half_turn)
        return path

    def measure(rate):
        run = functools.partial(heights, rate)
        # what a small change at the start becomes; a finite one would meet kinks
        change = jax.jvp(run, (params,), (direction,))[1]
        turns = jnp.abs(change).reshape(TURNS, 2 * half_turn).max(axis=1)
        return jnp.log(turns[-1] / turns[TURNS // 2])

    limit = stability.predict_step_limit(loss, params, None, stability.Dynamics(delay))
    measure = jax.jit(jax.vmap(measure), compiler_options=AS_USUAL)
    below, above = measure(limit * jnp.array([0.9, 1.1]))
    assert below < 0 < above
