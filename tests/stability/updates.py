"""The update as matrices, independent of `delayjax.stability`."""

import numpy as np


def law(delay):
    """The probabilities of the delays, from an int or from probabilities."""
    return np.eye(delay + 1)[delay] if np.ndim(delay) == 0 else np.asarray(delay)


def a_law(rng, longest):
    """Random probabilities of at least two delays."""
    return rng.dirichlet(np.full(rng.integers(2, longest + 2), rng.choice([0.1, 1.0])))


def options_of(rng, longest):
    """Momentum, weights and other options, each with a probability of one half."""
    weights = rng.uniform(0.1, 2, longest + 1)
    ahead = np.random.default_rng(int(1e6 * weights[0]))
    return {
        "momentum": rng.choice([0, rng.uniform(0, 0.99)]),
        "nesterov": bool(rng.integers(2)),
        "modulation": (lambda k: weights[k]) if rng.integers(2) else None,
        "compensation": rng.choice([0, rng.uniform(0, 2)]),
        "extrapolation": ahead.choice([0, ahead.uniform(0, 2)]),
    }


def update(
    state,
    k,
    step,
    momentum=0.0,
    nesterov=False,
    modulation=None,
    compensation=0.0,
    extrapolation=0.0,
    noise=0.0,
):
    """One update of (x_t, x_{t-1}, ..., m) by a noisy gradient with a delay of k."""
    window, velocity = state[:-1], state[-1]
    point = window[k]
    if extrapolation:
        point = point + extrapolation * (window[k] - window[k + 1])
    gradient = (1 - compensation) * point + compensation * window[0] + noise
    velocity = momentum * velocity + gradient
    change = gradient + momentum * velocity if nesterov else velocity
    weight = 1.0 if modulation is None else float(modulation(np.int32(k)))
    moved = window[0] - step * weight * change
    return np.concatenate([[moved], window[:-1], [velocity]])


def size_of(chances, extrapolation=0.0, **_):
    """The size of the state: the parameters that may be read, and m."""
    return len(chances) + 1 + (extrapolation > 0)


def matrices(step, delay, **options):
    """[(p_k, A_k)] for each possible k."""
    chances = law(delay)
    unit = np.eye(size_of(chances, **options))
    return [
        (chance, np.stack([update(e, k, step, **options) for e in unit], axis=1))
        for k, chance in enumerate(chances)
        if chance > 0
    ]


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


def mean(step, delay, **options):
    """The update of the mean of the state, as a matrix."""
    return sum(p * a for p, a in matrices(step, delay, **options))


def mean_radius(step, delay, **options):
    """The growth rate of the mean of the state."""
    return radius(mean(step, delay, **options))


def moment_operator(step, delay, **options):
    """The map X -> sum_k p_k A_k X A_k', as a matrix."""
    return sum(p * np.kron(a, a) for p, a in matrices(step, delay, **options))


def moment_radius(step, delay, **options):
    """The growth rate of the second moments of the state."""
    return radius(moment_operator(step, delay, **options))


def variance(step, delay, *, noise=1.0, **options):
    """The variance of x, with independent noise: V = sum p A V A' + noise."""
    size = size_of(law(delay), **options)
    added = np.zeros((size, size))
    for k, chance in enumerate(law(delay)):
        seen = update(np.zeros(size), k, step, noise=1.0, **options)
        added += chance * np.outer(seen, seen)
    operator = moment_operator(step, delay, **options)
    moments = np.linalg.solve(np.eye(size**2) - operator, added.ravel())
    return (noise / step) ** 2 * moments[0]
