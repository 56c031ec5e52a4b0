"""A config's tuples as programs of many cells."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from experiments import arms


class Program(NamedTuple):
    """What is static: one compiled program trains all cells that share it."""

    optimizer: str
    compensation: str
    placement: str
    arm: str = ""  # the protocol and its overrides; "" is a delay, not a cluster

    @property
    def name(self) -> str:
        """A name for files and progress lines."""
        return "-".join(filter(None, (*self[:3], arms.slug(self.arm))))


class Cell(NamedTuple):
    """What is traced: the hyper-parameters of one cell, or of all as [cells]."""

    learning_rate: jax.Array  # float32
    delay_law: jax.Array  # int32, an index into config.delay.law
    delay: jax.Array  # updates, float32
    modulation: jax.Array  # int32, an index into config.modulation.law
    strength: jax.Array  # float32


def programs(config: ConfigDict) -> list[Program]:
    """The programs of a config, in the order they are trained."""
    return [
        Program(*choice, arm)
        for arm, *choice in itertools.product(
            arms.names(config) or ("",),
            config.opt.name,
            config.compensation.name,
            config.modulation.placement,
        )
    ]


def cells(config: ConfigDict, program: Program) -> Cell:
    """The cells of one program, each field [cells]; the last field varies fastest."""
    compensated = program.compensation in ("dc", "dc_adaptive")
    axes = (
        config.opt[program.optimizer].learning_rate,
        (0,) if program.arm else range(len(config.delay.law)),
        (0,) if program.arm else config.delay.value,
        range(len(config.modulation.law)),
        config.compensation.strength if compensated else (0.0,),
    )
    dtypes = Cell(jnp.float32, jnp.int32, jnp.float32, jnp.int32, jnp.float32)
    columns = zip(*itertools.product(*axes), strict=True)
    return Cell(*map(jnp.asarray, columns, dtypes))
