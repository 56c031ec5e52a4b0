"""Visits to a center as rounds in which each worker comes at most once."""

import numpy as np
from jax.typing import ArrayLike

from delayjax._src.ground import checks, kinds


@kinds.checked
def visits_to_rounds(workers: ArrayLike, num_workers: kinds.PositiveInt) -> np.ndarray:
    """Cuts visits to a center into rounds in which each worker comes at most once.

    Training round by round equals training visit by visit. Asynchronous EASGD along the
    trace of `k_async(1)`:

        visits = visits_to_rounds(trace.worker, trace.num_workers)
        order = averaging.first_come(visits)
        tx = averaging.easgd(averaging.only_on_visit(inner, order), order=order)

    For H local steps between visits pass np.repeat(visits, H, axis=0) to `first_come`
    and period=H to the method; one gradient of the trace is then H local steps and
    takes their time.

    Args:
        workers: int [n], the worker of visit 0, 1, 2, ...
        num_workers: P.

    Returns:
        float64 [R, P]: the number of the visit that worker p makes in round r, inf
        where it makes no visit. A round computes P gradients and uses one for each
        visit. It has P visits for workers of one speed, about sqrt(pi P / 2) for
        exponential times.

    Example:
        >>> visits_to_rounds([0, 1, 0, 0, 2, 1], 3)
        array([[ 0.,  1., inf],
               [ 2., inf, inf],
               [ 3.,  5.,  4.]])
    """
    came = checks.as_counts("workers", workers, most=num_workers - 1, listed=True)
    if not came.size:
        raise ValueError("`workers` must have a visit, got none.")
    table: list[np.ndarray] = []
    for visit, worker in enumerate(came.tolist()):
        if not table or np.isfinite(table[-1][worker]):
            table.append(np.full(num_workers, np.inf))
        table[-1][worker] = visit
    return np.stack(table)
