"""How fast a training step grows what it trains: Lyapunov exponents, with no bound."""

import jax
import jax.numpy as jnp
import optax

import delayjax as dj

CURVATURE = 1.0
EACH = 8  # updates between two renormalizations of a population


def of_trajectory(train_step, carry, updates):
    """The growth per update of a small change of `carry`, a fixed point of the step.

    Changes are pushed through the step's derivative and brought back to size 1 after
    each update; the mean logarithm of what that took, over the second half.
    """
    leaves, tree = jax.tree.flatten(carry)
    moving = [i for i, leaf in enumerate(leaves) if _is_real(leaf)]

    def one_update(state, _):
        leaves, changes = state

        def moved(*values):
            new = dict(zip(moving, values, strict=True))
            new = [new.get(i, leaf) for i, leaf in enumerate(leaves)]
            after = jax.tree.leaves(train_step(jax.tree.unflatten(tree, new)))
            return [after[i] for i in moving], after

        values = [leaves[i] for i in moving]
        _, changes, leaves = jax.jvp(moved, values, changes, has_aux=True)
        size = jnp.sqrt(sum(jnp.sum(change**2) for change in changes))
        return (leaves, [change / size for change in changes]), jnp.log(size)

    changes = [jnp.ones_like(leaves[i]) for i in moving]
    _, logs = jax.lax.scan(one_update, (leaves, changes), length=updates)
    return logs[updates // 2 :].mean()


def of_second_moment(transformation, members, updates, seed):
    """The growth per update of E |state|^2 on a quadratic.

    The mean square is carried by rare members, which a mere mean would lack: every few
    updates members are drawn anew by their square, and brought back to size 1.

    Args:
        transformation: key -> optimizer, linear in the gradients.
        members: runs that differ in their key.
        updates: of each.
        seed: of all keys.
    """
    key, drawing = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(key, members)

    def begin(key):
        params = jnp.ones(())
        return params, transformation(key).init(params)

    def run(key, carry):
        step = quadratic_step(transformation(key))
        return jax.lax.fori_loop(0, EACH, lambda _, carry: step(carry), carry)

    def one_round(carry, key):
        carry = jax.vmap(run)(keys, carry)
        reals = [leaf for leaf in jax.tree.leaves(carry) if _is_real(leaf)]
        square = sum(jnp.sum(x.reshape(members, -1) ** 2, axis=1) for x in reals)
        heard = (jnp.arange(members) + jax.random.uniform(key)) / members
        drawn = jnp.searchsorted(jnp.cumsum(square) / jnp.sum(square), heard)
        drawn = jnp.minimum(drawn, members - 1)

        def again(leaf):
            if _is_real(leaf):
                size = jnp.sqrt(square).reshape(-1, *[1] * (leaf.ndim - 1))
                leaf = leaf / size
            return leaf[drawn]

        return jax.tree.map(again, carry), jnp.log(square.mean())

    rounds = jax.random.split(drawing, updates // EACH)
    _, logs = jax.lax.scan(one_round, jax.vmap(begin)(keys), rounds)
    return logs[len(rounds) // 4 :].mean() / EACH


def optimizer(learning_rate, *, modulation=None, momentum=None, nesterov=False):
    """SGD, its updates weighed by their staleness."""
    sgd = optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov)
    if modulation is None:
        return sgd
    return optax.chain(sgd, dj.scale_by_staleness(modulation))


def quadratic_step(tx):
    """(params, opt_state) -> the same after one update on x^2 / 2."""

    def train_step(carry):
        params, opt_state = carry
        grads = jax.grad(lambda x: CURVATURE * x**2 / 2)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    return train_step


def _is_real(leaf):
    return jnp.issubdtype(leaf.dtype, jnp.inexact)
