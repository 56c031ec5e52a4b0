"""The contract of a transformation: what it must keep to work everywhere."""

from collections.abc import Sequence
from typing import Any

import jax

from delayjax._src.ground import kinds, transforms
from delayjax._src.testing import subjects
from delayjax._src.testing.contract import REMEDIES, Contract
from delayjax._src.testing.report import Report, report_on


@kinds.checked
def check(
    tx: transforms.Transformation,
    params: Any,
    *,
    extra_args: subjects.ExtraArgs | None = None,
    axis_name: str | None = None,
    workers: kinds.PositiveInt = 4,
    devices: Sequence[Any] | None = None,
    tolerance: float = 1e-5,
) -> Report:
    """Checks the contract of a transformation, promise by promise.

    | promise | what is compared |
    |---|---|
    | a step runs | `init` and `update` as users call them, nine steps; all parameters
      are finite, and nothing is NaN |
    | types stay | structure, shape, dtype and weak type of state and updates |
    | any staleness | finite updates at 0, 1, ..., 64 and 1000, and at means, which are
      floats; a rule that takes none names `staleness` in its error |
    | init from shapes | the state of arrays, and of `jax.ShapeDtypeStruct`s |
    | jit is eager | five steps, compiled or not |
    | scan is the loop | `jax.lax.scan` of the steps |
    | vmap is each alone | two seeds together |
    | devices are not counted | `init` and `update` do not change if calls of
      `jax.devices`, `local_devices`, `device_count` and `local_device_count` return
      other answers |
    | buffers are distinct | parameters, gradients and state, which are donated |
    | unknown extra arguments | `update(..., weather="fair")` changes nothing |
    | a checkpoint goes on | a state saved after two steps and restored: same bits |
    | workers' types | the state that a worker makes inside of `shard_map` |
    | sharded, Auto axes; sharded, Explicit axes | a leaf of the state is sharded as its
      parameter, after `init` and after a step |
    | run is simulate | `workers.run` on devices, and `workers.simulate` |
    | a worker is the rule alone | several workers, with an axis that is called
      "workers", and each alone |
    | each gradient counts | with `axis_name`, in place of the row above: the gradients
      of each worker change the parameters |

    Sharding and `run` need several devices: `python -m delayjax.testing` starts some on
    the CPU, or set `jax.config.update("jax_num_cpu_devices", 8)` before all else.

    Args:
        tx: the transformation.
        params: its parameters, a tree of arrays or shapes. The gradients are drawn from
            a normal distribution. A small tree of several dtypes, as in the example,
            finds most errors.
        extra_args: (step, params) -> the extra arguments of `update`, a dictionary. By
            default the arguments that producers of late gradients hand on: `staleness`,
            `stale_params`, `value` and `worker`; with `axis_name` none.
        axis_name: the workers' axis, if `tx` has collectives over it. The workers hold
            the same parameters; `check_averaging` is for models that differ.
        workers: the number of workers. `run` needs as many devices.
        devices: the devices to use, by default all.
        tolerance: the largest difference, relative above 1 and absolute below, for
            rounding in another order; ten times as much where workers sum in another
            order. bfloat16 and float16 may differ by some units in their last bit.

    Returns:
        A report. `report.require()` raises an `AssertionError` with what fails. It
        costs some seconds, most of them to compile five programs.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(4, jnp.bfloat16)}
        >>> report = check(optax.trace(0.9), params, devices=jax.devices()[:1])
        >>> report.row("types stay").verdict
        'holds'
        >>> wide = optax.stateless(lambda u, _: optax.tree.cast(u, jnp.float32))
        >>> print(check(wide, params, devices=jax.devices()[:1]).failures[0].reason)
        `updates['b']` is bfloat16[4] as a gradient, and float32[4] as an update.
    """
    tx = transforms.as_transformation("tx", tx)
    if extra_args is None:
        extra_args = subjects.every_producer if axis_name is None else subjects.nothing
    contract = Contract(
        tx=tx,
        params=subjects.as_given(params),
        extra_args=extra_args,
        axis_name=axis_name,
        shared=None,
        workers=workers,
        devices=jax.devices() if devices is None else devices,
        tolerance=tolerance,
    )
    return report_on(name_of(tx), contract.promises(), REMEDIES)


def name_of(tx: Any) -> str:
    """The name of the factory that made a transformation."""
    update = getattr(tx.update, "__wrapped__", tx.update)
    factory = getattr(update, "__qualname__", type(tx).__name__).split(".<locals>")[0]
    return factory.split(".")[-1]
