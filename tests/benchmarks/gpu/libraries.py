"""Kernels by experts as peers of the workloads: Liger (Triton) and QuACK (CuTe DSL), if they have a kernel.

Both are optional: ``pip install liger-kernel quack-kernels "nvidia-cutlass-dsl[cu13]"``. A function takes the arrays of
the workload and returns its results, in the workload's order and dtypes. Operands that a library expects in another
form (weights in Float) are converted before the call is measured, so that only its own kernels count. QuACK's rotation
takes a table with equal halves, which the workload's table does not have.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

Call = Callable[[], Any]
Made = Callable[..., Call]


def _liger(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


def _quack(module: str, name: str) -> Any:
    import importlib

    return getattr(importlib.import_module(f"quack.{module}"), name)


def liger_softmax(x: Any) -> Call:
    forward = _liger("softmax", "_softmax_forward")
    return lambda: forward(x)[0]


def quack_softmax(x: Any) -> Call:
    forward = _quack("softmax", "softmax_fwd")
    return lambda: forward(x)


def liger_rms(x: Any, weight: Any) -> Call:
    forward = _liger("rms_norm", "rms_norm_forward")
    return lambda: forward(x, weight, 1e-6, 0.0, "gemma", None)[0]


def quack_rms(x: Any, weight: Any) -> Call:
    forward = _quack("rmsnorm", "rmsnorm_fwd")
    return lambda: forward(x, weight, eps=1e-6)[0]


def liger_add_rms(x: Any, residual: Any, weight: Any) -> Call:
    forward = _liger("fused_add_rms_norm", "fused_add_rms_norm_forward")

    def call() -> Any:
        normed, total, *_ = forward(x, residual, weight, 1e-6, 0.0, "gemma")
        return total, normed

    return call


def quack_add_rms(x: Any, residual: Any, weight: Any) -> Call:
    forward = _quack("rmsnorm", "rmsnorm_fwd")

    def call() -> Any:
        normed, total, _ = forward(x, weight, residual=residual, eps=1e-6)
        return total, normed

    return call


def liger_layer_norm(x: Any, weight: Any, bias: Any) -> Call:
    forward = _liger("layer_norm", "layer_norm_forward")
    return lambda: forward(x, weight, bias, 1e-5)[0]


def quack_layer_norm(x: Any, weight: Any, bias: Any) -> Call:
    forward, weight, bias = _quack("rmsnorm", "layernorm_fwd"), weight.float(), bias.float()
    return lambda: forward(x, weight, bias, eps=1e-5)


def liger_rms_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> Call:
    backward, settings = _liger("rms_norm", "rms_norm_backward"), _liger("utils", "calculate_settings")
    block, warps = settings(x.shape[-1])
    rstd = rstd.flatten()
    return lambda: backward(dy, x, weight, rstd, 0.0, 1, block, warps, in_place=False, row_mode=None)


def quack_rms_bwd(dy: Any, x: Any, weight: Any, rstd: Any) -> Call:
    backward, rstd = _quack("rmsnorm", "rmsnorm_bwd"), rstd.flatten()
    return lambda: backward(x, weight, dy, rstd)[:2]


def liger_layer_norm_bwd(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Call:
    import torch

    backward, mean, rstd = _liger("layer_norm", "layer_norm_backward"), mean.flatten(), rstd.flatten()
    bias = torch.zeros_like(weight)
    return lambda: backward(dy, x, weight, bias, mean, rstd)


def quack_layer_norm_bwd(dy: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Call:
    backward, mean, rstd = _quack("rmsnorm", "layernorm_bwd"), mean.flatten(), rstd.flatten()
    return lambda: backward(x, weight, dy, rstd, mean)


def liger_silu_mul(gate: Any, up: Any) -> Call:
    forward = _liger("swiglu", "swiglu_forward")
    return lambda: forward(gate, up)[-1]


def quack_cross_entropy(x: Any, target: Any) -> Call:
    forward = _quack("cross_entropy", "cross_entropy_fwd")
    return lambda: forward(x, target)


KERNELS: Final[dict[str, dict[str, Made]]] = {
    "liger": {
        **dict.fromkeys(("softmax_1k", "softmax_8k", "softmax_32k", "softmax_128k"), liger_softmax),
        "rmsnorm_fwd": liger_rms, "add_rmsnorm_fwd": liger_add_rms, "layernorm_fwd": liger_layer_norm,
        "rmsnorm_bwd": liger_rms_bwd, "layernorm_bwd": liger_layer_norm_bwd, "silu_mul": liger_silu_mul,
        "softmax_32": liger_softmax, "softmax_32003": liger_softmax, "tiny_softmax": liger_softmax,
        "layer_norm_768": liger_layer_norm, "tiny_layer_norm": liger_layer_norm,
    },
    "quack": {
        **dict.fromkeys(("softmax_1k", "softmax_8k", "softmax_32k", "softmax_128k"), quack_softmax),
        "rmsnorm_fwd": quack_rms, "add_rmsnorm_fwd": quack_add_rms, "layernorm_fwd": quack_layer_norm,
        "rmsnorm_bwd": quack_rms_bwd, "layernorm_bwd": quack_layer_norm_bwd,
        "softmax_32": quack_softmax, "softmax_256k": quack_softmax, "tiny_softmax": quack_softmax,
        "layer_norm_768": quack_layer_norm,
        "tiny_layer_norm": quack_layer_norm, "cross_entropy": quack_cross_entropy,
    },
}


def library_call(library: str, workload: str, arrays: Sequence[Any]) -> Call | None:
    """Return a library's function on the arrays of a workload; None if it has no kernel for it."""
    made = KERNELS[library].get(workload)
    return made(*arrays) if made else None
