"""Examples, tokens and MFU per second of training."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from experiments.tasks.task import Task
from experiments.training.rules import begun

_TPUS = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
_A100, _H100_SXM, _H100_PCIE, _H200 = 312e12, 1979e12 / 2, 1513e12 / 2, 1979e12 / 2
PEAK_FLOPS = {
    "TPU v4": _TPUS["v4"],
    "TPU v5e": _TPUS["v5e"],
    "TPU v5 lite": _TPUS["v5e"],
    "TPU v5p": _TPUS["v5p"],
    "TPU v5": _TPUS["v5p"],
    "TPU v6e": _TPUS["v6e"],
    "TPU v6 lite": _TPUS["v6e"],
    "NVIDIA A100-SXM4-40GB": _A100,
    "NVIDIA A100-SXM4-80GB": _A100,
    "NVIDIA A100-PCIE-40GB": _A100,
    "NVIDIA A100 80GB PCIe": _A100,
    "NVIDIA H100 80GB HBM3": _H100_SXM,
    "NVIDIA H100 PCIe": _H100_PCIE,
    "NVIDIA H200": _H200,
}
"""Dense bfloat16 FLOP/s of a device, by `jax.Device.device_kind`.

TPUs: the pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" of
https://cloud.google.com/tpu/docs, "peak compute per chip (bf16)"; the kinds' names are
those of `jax.experimental.pallas.tpu.get_tpu_info`. GPUs: NVIDIA's data sheets of the
A100, the H100 and the H200, "BFLOAT16 Tensor Core"; for the last two they are given
with sparsity, which doubles them. A kind that is not here has no peak.
"""


class Work(NamedTuple):
    """The work of training on an example; None if it is not known."""

    tokens: float | None  # predicted by an example
    flops: float | None  # see `flops_of_an_example`
    peak_flops: float | None  # of all devices, per second

    def rates(self, examples_per_second: float) -> dict[str, float]:
        """The known rates of examples, tokens and MFU, by the names of the metrics.

        MFU, model FLOPs utilization, is the share of the devices' bfloat16 peak:

            mfu = flops * examples_per_second / peak_flops

        Example:
            >>> Work(64, 1e12, 200e12).rates(50.0)["mfu"]
            0.25
            >>> Work(64, None, None).rates(2.0)["tokens_per_second"]
            128.0

        References:
            Chowdhery et al., PaLM, 2022, arXiv:2204.02311, appendix B.
        """
        rates = {"examples_per_second": examples_per_second}
        if self.tokens is not None:
            rates["tokens_per_second"] = self.tokens * examples_per_second
        if self.flops is not None and self.peak_flops is not None:
            rates["mfu"] = self.flops * examples_per_second / self.peak_flops
        return rates


def work_of(task: Task, devices: Sequence[jax.Device]) -> Work:
    """The work of one example of a task on the devices of a program."""
    peaks = [PEAK_FLOPS.get(device.device_kind) for device in devices]
    peak = None if None in peaks else sum(peaks)
    if task.examples is None:
        return Work(None, None, peak)
    tokens = None if task.tokens is None else task.tokens / task.examples
    # without a known peak the FLOPs are not needed
    return Work(tokens, None if peak is None else flops_of_an_example(task), peak)


def flops_of_an_example(task: Task) -> float:
    """The FLOPs of a training step for one example, from the formula of the model:

        3 * sum over the loss's matrix products and convolutions of 2 * multiply-adds

    The factor 3 is one forward pass and a backward pass of two products each. For a
    Transformer the sum is 6 N per token, with N the weights in products, and the
    products of attention. Other operations do not count, and neither does what a
    compiler recomputes or saves.

    Args:
        task: a task with `examples`.
    """
    key = jax.random.key(0)
    model = jax.eval_shape(lambda: begun(task, key))
    example = jax.tree.map(lambda x: x[0], task.batches(0, 0, 1, slice(0, 1)))
    options = {"state": model.state} if task.has_state else {}
    options |= {"key": key} if task.uses_key else {}
    jaxpr = jax.make_jaxpr(task.loss)(model.params, example, **options)
    return 3.0 * _products(jaxpr.jaxpr)


def _products(jaxpr: Any) -> int:
    """FLOPs of the products in a jaxpr; a scan's body counts once for each step."""
    total = 0
    for equation in jaxpr.eqns:
        params = equation.params
        inputs = [variable.aval for variable in equation.invars]
        outputs = [variable.aval for variable in equation.outvars]
        match equation.primitive.name:
            case "dot_general":
                (contracted, _), _ = params["dimension_numbers"]
                depth = math.prod(inputs[0].shape[axis] for axis in contracted)
                total += 2 * outputs[0].size * depth
            case "conv_general_dilated":
                features = params["dimension_numbers"].rhs_spec[0]
                depth = inputs[1].size // inputs[1].shape[features]
                total += 2 * outputs[0].size * depth
        inner = sum(_products(body) for body in _bodies(params))
        total += params.get("length", 1) * inner
    return total


def _bodies(params: dict[str, Any]) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    values = []
    for value in params.values():
        values += value if isinstance(value, (tuple, list)) else [value]
    bodies = [getattr(value, "jaxpr", value) for value in values]
    return [body for body in bodies if hasattr(body, "eqns")]
