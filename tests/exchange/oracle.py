"""Data-parallel training as loops over steps and workers, in float64.

A gradient is `grad(x, batch)` of one worker, at parameters x [N]; an optimizer is a
function (g, age, moved) -> update that keeps its moments to itself. `age` is the mean
staleness of what it is given, `moved` how far the parameters went in that many steps.
"""

import numpy as np


def sgd(rate):
    return lambda g, age, moved: -rate * g


def momentum(rate, decay):
    m = 0.0

    def optimizer(g, age, moved):
        nonlocal m
        m = decay * m + g
        return -rate * m

    return optimizer


def adam(rate, b1=0.9, b2=0.999, eps=1e-8):
    m, v, k = 0.0, 0.0, 0

    def optimizer(g, age, moved):
        nonlocal m, v, k
        k += 1
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        return -rate * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + eps)

    return optimizer


def scaled(optimizer, law):
    """u <- law(tau) u."""
    return lambda g, age, moved: law(age) * optimizer(g, age, moved)


def dropping(optimizer, bound):
    """Untouched while tau > bound."""
    return lambda g, age, moved: (
        np.zeros_like(g) if age > bound else optimizer(g, age, moved)
    )


def compensated(optimizer, strength):
    """DC-ASGD-c, g <- g + lam g * g * (x_t - x_{t-tau})."""
    return lambda g, age, moved: optimizer(g + strength * g * g * moved, age, moved)


def of_group(grad):
    """The mean gradient of a group's members, as if it were one worker's."""
    return lambda x, batches: np.mean([grad(x, batch) for batch in batches], axis=0)


def weighted_mean(values, weights):
    """sum_p w_p g_p / sum_p w_p; zero where all weights are."""
    total = sum(weights)
    if total == 0:
        return np.zeros_like(values[0])
    return sum(w * g for w, g in zip(weights, values, strict=True)) / total


def train(
    grad,
    x,
    batches,
    optimizer,
    *,
    delay=lambda worker, step: 0,
    weight=lambda age: 1.0,
    before_mean=lambda worker, g, moved: g,
    overlapped=False,
    follow=None,
):
    """The parameters after each step, [T, N].

    At step t worker p hands in its gradient of step t - tau, with tau = delay(p, t),
    at most t. The optimizer is fed the weighted mean of what was handed in, or where it
    is `overlapped` of what was handed in at the step before.

    Args:
        grad: one worker's gradient.
        x: parameters before step 0, [N].
        batches: [T, P, ...].
        optimizer: behind the mean.
        delay: of a worker at a step.
        weight: of a gradient in the mean, by its staleness.
        before_mean: what a worker makes of the gradient that it hands in.
        overlapped: whether the mean is one step late.
        follow: parameters [T, N] that each step starts at instead of the last one's.
    """
    points, after, gradients, handed_in = [], [], [], []
    for t, batch in enumerate(batches):
        points.append(x if follow is None else follow[t])
        gradients.append([grad(points[t], own_batch) for own_batch in batch])

        ages = [min(delay(p, t), t) for p in range(len(batch))]
        late = [
            before_mean(p, gradients[t - tau][p], points[t] - points[t - tau])
            for p, tau in enumerate(ages)
        ]
        handed_in.append((late, ages))

        if overlapped and t == 0:
            after.append(points[0])
            continue
        values, ages = handed_in[t - 1] if overlapped else handed_in[t]
        weights = [weight(tau) for tau in ages]
        mean = weighted_mean(values, weights)
        age = weighted_mean(np.asarray(ages, float), weights) + overlapped
        moved = points[t] - points[t - round(age)]
        x = points[t] + optimizer(mean, age, moved)
        after.append(x)
    return np.stack(after)
