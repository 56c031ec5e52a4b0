"""Synchronous or asynchronous: where does the winner change?

Sixteen workers, gradients of 1 s (lognormal, a spread of 0.3), messages of 0.01 to 1 s:
computation over communication from 100 down to 1. An all-reduce is 2 log2 P messages
one after the other, a visit to the center of EA-wild is two. Batches of 2, 8 and 32 on
each worker. Both with SGD and with LARS, momentum and a warm-up of 20 steps,
each at its best step: the simulated time until an MLP on scikit-learn's digits has a
training loss of 0.3.

    python -m experiments.main --config=configs/sync_or_async.py \
        --workdir=runs/sync_or_async

About 6 minutes on two cores. Seen (2026-11-21, commit 79f0f35e09f6, jax 0.10.2):
The winner changes with both. With a batch of 2 the synchronous mean wins at every
ratio, by 1.1 x to 1.6 x; with 8 by a little up to a tenth, and EA-wild by 1.7 x where a
message takes as long as a gradient; with 32 EA-wild wins by 1.5 x to 2.4 x, for nobody
waits for the slowest of sixteen. LARS helps the synchronous arm where its steps are
fewest.
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    """18 arms, two optimizers each."""
    config = default.get_config()
    config.opt.name = ("sgd", "lars")
    config.opt.warmup_steps = 20
    config.opt.sgd.momentum = 0.9
    config.opt.sgd.learning_rate = (0.01, 0.03, 0.1, 0.3, 1.0)
    config.opt.lars.learning_rate = (3.0, 10.0, 30.0, 100.0)
    config.cluster.workers = 16
    config.cluster.service = "lognormal(1.0, 0.3)"
    config.cluster.seconds = 500.0
    config.cluster.evaluations = 50
    config.cluster.arms = tuple(
        f"{method}() latency_seconds={latency} batch_size={batch}"
        for batch in (2, 8, 32)
        for latency in (0.01, 0.1, 1.0)
        for method in ("allreduce_sgd", "ea_wild")
    )
    config.target.value = 0.3
    config.metric = config.select_by = "seconds_to_target"
    config.over.option = "latency_seconds"
    config.over.label = "communication / computation"
    config.over.panels = "batch_size"
    config.checkpoint_every = 1000
    config.figures = ("over_option", "update_times")
    # arms by their numbers: their names have dots, which keys may not
    config.expected = ConfigDict(
        {
            "seconds_to_target/sgd/arm=0": 95,  # all-reduce, batch 2, messages 0.01 s
            "seconds_to_target/sgd/arm=1": 156,  # EA-wild, the same
            "seconds_to_target/sgd/arm=6": 53,  # all-reduce, batch 8, 0.01 s
            "seconds_to_target/sgd/arm=7": 57,
            "seconds_to_target/sgd/arm=10": 243,  # batch 8, 1 s
            "seconds_to_target/sgd/arm=11": 155,
            "seconds_to_target/sgd/arm=16": 227,  # batch 32, 1 s
            "seconds_to_target/sgd/arm=17": 82,
        }
    )
    return config
