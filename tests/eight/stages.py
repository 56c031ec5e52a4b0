"""Pipelines of eight stages, or of four with two parts of the data: a process of it."""

import json

import jax
import optax

from delayjax import pipelines
from tests.pipelines import chain
from tests.pipelines.following import assert_follows

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    compared = {}
    for stages in (8, 4):
        mesh = jax.make_mesh((stages, 8 // stages), ("stages", "data"))
        for stash in (True, False):
            schedule = pipelines.pipedream(stages, stash=stash, in_flight="full")
            compared[f"{stages}, {stash}"] = assert_follows(
                chain.parts(), optax.adam(0.003), schedule, mesh, updates=50
            )
    print(json.dumps(compared))
