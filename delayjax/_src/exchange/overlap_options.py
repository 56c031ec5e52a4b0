"""Compiler options under which communication hides behind computation."""

from typing import Any

_WITHOUT_PRODUCTS = "xla_tpu_enable_async_collective_fusion_fuse_kloop_fusions"

TPU: dict[str, bool | int | float] = {
    # all-reduces may start and end in two places, and the scheduler moves these apart
    "xla_enable_async_all_reduce": True,
    # a collective advances within the fusions that compute matrix products; without
    # this option and the next, the compiler makes it synchronous again
    "xla_tpu_enable_async_collective_fusion": True,  # the default of libtpu 0.0.42
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    # a collective advances in several fusions in turn, because one may be too short
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,  # the default, too
    # also within fusions without products: softmax, losses and updates
    _WITHOUT_PRODUCTS: True,
    # the scheduler counts a quarter of a computation's time, so collectives start
    # early: by default large ones get half of the time that they need
    "xla_lhs_output_fusion_latency_multiplier": 0.25,
    "xla_lhs_loop_fusion_latency_multiplier": 0.25,
    # all-reduces up to this size are merged; merged ones are not fused
    "xla_jf_crs_combiner_threshold_in_bytes": 0,
}
"""For TPUs; read off programs compiled for v5e, v5p and v6e, with libtpu 0.0.42.1."""

TPU_V6E = TPU | {_WITHOUT_PRODUCTS: False}
"""For a v6e. With fusions without products all bytes of a decoder's sums are hidden,
otherwise 93 %. But the compiler estimates 33 ms for an update with them, and 23 ms
otherwise (`configs/tokens_pod.py`, two blocks). With `mean` an update takes 21 ms: on a
v6e late sums make the step slower.
"""

GPU: dict[str, bool | int | float] = {
    # collectives start early and are awaited late; they are asynchronous anyway
    "xla_gpu_enable_latency_hiding_scheduler": True,
    # all-reduces up to this size are merged
    "xla_gpu_all_reduce_combine_threshold_bytes": 0,
    # all collectives may run at the same time. By default they run one at a time, at
    # the end of the step, where too little computation is left to hide them
    "xla_gpu_experimental_parallel_collective_overlap_limit": 1000,
}
"""For GPUs; read off programs compiled for an H100, with jaxlib 0.10.2.

Nothing was timed with them. Pipelined collectives
(`xla_gpu_enable_pipelined_all_reduce`) are not among them: they move a collective into
the next round of a loop, as the outbox does already, and are gone in jaxlib 0.12.
"""


def overlap_options(device: Any) -> dict[str, bool | int | float]:
    """The compiler options with which late collectives hide behind computation.

    `overlapped_mean` and `late_reduce` need them: with a compiler's defaults the sums
    of all gradients are merged and run before the step, not during the step. On each
    platform the options ask the compiler for the same: collectives that start and end
    in two places, computation between the two, and no merging of sums. A merged sum
    starts after the last gradient in it, and no part of it can be used before the whole
    sum has arrived.

    They were read off programs that were compiled ahead of time: for v5e, v5p and v6e
    with libtpu 0.0.42.1, for an H100 with jaxlib 0.10.2. Nothing was timed with them.

    Args:
        device: the `jax.Device` that runs the step, or that it is compiled for.

    Returns:
        {option: value}, for `jax.jit(step, compiler_options=...)` or
        `jax.jit(step).lower(...).compile(compiler_options=...)`. A backend refuses an
        option that it does not know, so each platform has its options; a CPU has none.

    Example:
        >>> import jax
        >>> device = jax.devices()[0]
        >>> options = overlap_options(device)
        >>> step = jax.jit(lambda x: x + 1, compiler_options=options or None)
        >>> int(step(1))
        2
    """
    if device.device_kind in ("TPU v6e", "TPU v6 lite"):
        return dict(TPU_V6E)
    return dict({"tpu": TPU, "gpu": GPU}.get(device.platform, {}))
