"""The ATen ops that are decomposed into simpler ones before a graph is partitioned.

The table is our own: torch's core table decomposes CPU flash attention into a form whose logsumexp the backward op
cannot use, decomposes random ops, and depends on which modules have been imported. Names without a decomposition in the
installed torch are skipped.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from fuser_lab.bridge import batch_norm, composites, pools
from fuser_lab.bridge.requirement import torch_for

# By packet: every overload of it that torch can decompose. No attention, no random op, no matrix product, and nothing
# whose decomposition writes at positions that are data: no kernel computes that, and torch has one for the whole op.
NAMES = """
    _adaptive_avg_pool2d _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _chunk_cat
    _euclidean_dist _fused_rms_norm _fused_rms_norm_backward _log_softmax _log_softmax_backward_data
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _prelu_kernel
    _prelu_kernel_backward _reshape_alias _safe_softmax _softmax _softmax_backward_data _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _weight_norm_interface adaptive_max_pool2d addr
    affine_grid_generator alias_copy aminmax avg_pool2d_backward batch_norm_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits block_diag celu channel_shuffle count_nonzero
    cudnn_batch_norm cudnn_batch_norm_backward deg2rad diag diag_embed diagonal_backward diagonal_copy dist dot
    elu_backward empty_like expand_as expand_copy fill floor_divide frexp gelu_backward glu glu_backward
    grid_sampler_2d hann_window hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward
    hardtanh_backward heaviside hinge_embedding_loss huber_loss huber_loss_backward im2col isin l1_loss ldexp
    leaky_relu_backward lerp linalg_cross linalg_vector_norm linspace log_sigmoid_backward log_sigmoid_forward
    logaddexp logaddexp2 logit logit_backward logspace logsumexp margin_ranking_loss masked_fill
    miopen_batch_norm_backward mish mish_backward mse_loss mse_loss_backward multi_margin_loss
    multilabel_margin_loss_forward mvlgamma nan_to_num nansum narrow narrow_copy native_batch_norm
    native_batch_norm_backward native_dropout_backward native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward
    nll_loss_backward nll_loss_forward norm ones pairwise_distance permute_copy pixel_shuffle pixel_unshuffle prelu
    rad2deg reflection_pad1d reflection_pad2d reflection_pad3d renorm repeat replication_pad1d replication_pad2d
    replication_pad3d resize_as roll rot90 rrelu_with_noise_backward selu
    sigmoid_backward silu_backward sinc smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward softshrink special_entr special_log_ndtr special_ndtr
    special_xlog1py square squeeze_copy std std_mean t_copy take tanh_backward threshold threshold_backward trace
    transpose_copy tril tril_indices triu triu_indices unbind_copy unfold_copy unsqueeze_copy upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d value_selecting_reduction_backward
    vdot xlogy zero
"""


@functools.cache
def table(left_to_torch: frozenset[str] = frozenset()) -> Mapping[Any, Any]:
    """Return the decompositions by ATen op, as ``aot_autograd`` takes them, without those of ops that torch runs."""
    torch = torch_for("fuser_lab.bridge")
    from_names = torch._decomp.get_decompositions  # noqa: SLF001 - torch has no public name for it
    left = frozenset(".".join(name.split(".")[:2]) for name in left_to_torch)  # whatever the overload
    packets = [
        getattr(torch.ops.aten, name) for name in NAMES.split()
        if hasattr(torch.ops.aten, name) and not is_named(f"aten.{name}", left)
    ]
    decompositions: dict[Any, Any] = from_names(packets)
    decompositions |= {op: mended for op, mended in batch_norm.decompositions().items() if op in decompositions}
    lowered = composites.decompositions() | pools.decompositions()
    decompositions |= {op: written for op, written in lowered.items() if not is_named(str(op), left)}
    return {op: _with_usual_strides(op, decomposed) for op, decomposed in decompositions.items()}


def _with_usual_strides(op: Any, decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition whose results have the strides that the op gives them, which callers may rely on."""
    torch = torch_for("fuser_lab.bridge")
    # What torch flattens arguments with.
    leaves, flattened = torch.utils._pytree.tree_leaves, torch.utils._pytree.tree_flatten  # noqa: SLF001
    untraced = importlib.import_module("torch.fx.experimental.proxy_tensor").disable_proxy_modes_tracing

    def is_laid_out(value: Any) -> bool:
        """Whether a value is a tensor with known sizes whose elements are not in row-major order."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.ndim < 2:
            return False
        return all(type(n) is int for n in (*value.shape, *value.stride())) and not value.is_contiguous()

    @functools.wraps(decomposed)
    def call(*args: Any, **kwargs: Any) -> Any:
        results = decomposed(*args, **kwargs)
        if results is NotImplemented or not any(map(is_laid_out, leaves((args, kwargs, results)))):
            return results
        try:
            with untraced():
                expected = leaves(op(*args, **kwargs))
        except RuntimeError:  # of an op whose strides torch does not know without running it
            return results
        made, spec = flattened(results)
        if len(made) != len(expected):
            return results
        return torch.utils._pytree.tree_unflatten(map(_as_laid, made, expected), spec)  # noqa: SLF001

    return call


def _as_laid(result: Any, like: Any) -> Any:
    """Return a result with the order of axes in memory of a dense tensor, which is not traced."""
    if not hasattr(like, "stride") or result.stride() == like.stride() or 0 in like.shape:
        return result
    strides, sizes = like.stride(), like.shape
    order = sorted(range(like.ndim), key=lambda axis: (-strides[axis], -sizes[axis]))
    dense = [prod(sizes[axis] for axis in order[place + 1 :]) for place in range(like.ndim)]
    if any(sizes[axis] > 1 and strides[axis] != step for axis, step in zip(order, dense, strict=True)):
        return result
    return result.permute(order).contiguous().permute(sorted(range(like.ndim), key=order.__getitem__))


def is_named(target: str, names: frozenset[str]) -> bool:
    """Whether names contain an op such as ``"aten._softmax.int"``: its full, overload-free, or common name."""
    space, _, rest = target.partition(".")
    bare = rest.partition(".")[0]
    return not names.isdisjoint((target, f"{space}.{bare}", bare, bare.lstrip("_"), f"{space}.{bare.lstrip('_')}"))
