"""The server that trainings along a trace are compared with: it keeps all versions."""

import numpy as np
import optax

from experiments.training.jobs import data_seed
from tests.support.training_runs import CURVATURES, NOISE, NOISY, QUIET, RATES

MOMENTUM = 0.9


def server(learning_rate):
    return optax.sgd(learning_rate, MOMENTUM)


def versions_of(
    run, s, rate, *, trace=None, momentum=MOMENTUM, factor=None, after=None, lam=0.0
):
    """The versions of a cell. `factor` weights gradients, `after` weights steps."""
    trace, seed = trace or run.traces[s], run.program.seeds[s]
    noise = NOISY.batches(data_seed(seed), 0, len(trace.worker))
    noise = (0.0 if run.program.task is QUIET else NOISE) * noise
    x = np.asarray(run.begun.model.params[s, 0], np.float64)
    velocity, versions = np.zeros_like(x), [x]
    for t in range(trace.num_updates):
        total, taus = 0.0, []
        for g in np.flatnonzero(trace.update == t):
            old = versions[trace.read_version[g]]
            grad = CURVATURES * old + noise[g]
            grad = grad + lam * grad**2 * (x - old)
            taus.append(t - int(trace.read_version[g]))
            total = total + grad * (1.0 if factor is None else factor(taus[-1]))
        if not taus:  # an update without gradients moves nothing
            versions.append(x)
            continue
        velocity = momentum * velocity + total / trace.divisor[t]
        scale = 1.0 if after is None else after(np.mean(taus))
        x = x - rate * scale * velocity
        versions.append(x)
    return versions


def by_hand(run, s, rate, **rule):
    """The parameters of one cell at the end of a run."""
    return versions_of(run, s, rate, **rule)[run.job.updates]


def assert_close(result, expected):
    """Equal up to the rounding of float32."""
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def assert_cells_are(run, **rule):
    for s, c in np.ndindex(2, 2):
        assert_close(run.params[s, c], by_hand(run, s, RATES[c], **rule))


def ages_of(trace, length):
    """How many gradients of a trace have each age."""
    return np.bincount(trace.update - trace.read_version, minlength=length)
