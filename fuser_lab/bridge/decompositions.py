"""The ATen ops that are decomposed into simpler ones before a graph is partitioned.

The table is our own: torch's core table decomposes CPU flash attention into a form whose logsumexp the backward op
cannot use, decomposes random ops, and depends on which modules have been imported. Names without a decomposition in the
installed torch are skipped.
"""

from typing import Any

from fuser_lab.bridge import batch_norm, composites
from fuser_lab.bridge.requirement import torch_for

# By packet: every overload of it that torch can decompose. No attention, no random op, no matrix product.
NAMES = """
    _adaptive_avg_pool2d _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _chunk_cat
    _euclidean_dist _fused_rms_norm _fused_rms_norm_backward _log_softmax _log_softmax_backward_data
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _prelu_kernel
    _prelu_kernel_backward _reshape_alias _safe_softmax _softmax _softmax_backward_data _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _weight_norm_interface adaptive_max_pool2d addr
    affine_grid_generator alias_copy aminmax avg_pool2d_backward batch_norm_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits block_diag celu channel_shuffle col2im count_nonzero
    cudnn_batch_norm cudnn_batch_norm_backward deg2rad diag diag_embed diagonal_backward diagonal_copy dist dot
    elu_backward empty_like expand_as expand_copy eye fill floor_divide frexp gelu_backward glu glu_backward
    grid_sampler_2d hann_window hardshrink hardsigmoid hardsigmoid_backward hardswish hardswish_backward
    hardtanh_backward heaviside hinge_embedding_loss huber_loss huber_loss_backward hypot im2col index_copy index_fill
    isin isneginf isposinf l1_loss ldexp leaky_relu_backward lerp linalg_cross linalg_vector_norm linspace
    log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit logit_backward logspace logsumexp
    margin_ranking_loss masked_fill max_pool2d_with_indices_backward max_unpool2d max_unpool3d
    miopen_batch_norm_backward mish mish_backward mse_loss mse_loss_backward multi_margin_loss
    multilabel_margin_loss_forward mvlgamma nan_to_num nansum narrow narrow_copy native_batch_norm
    native_batch_norm_backward native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm
    native_layer_norm_backward new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward nll_loss_backward
    nll_loss_forward norm ones pairwise_distance permute_copy pixel_shuffle pixel_unshuffle prelu rad2deg
    reflection_pad1d reflection_pad2d reflection_pad3d renorm repeat replication_pad1d replication_pad2d
    replication_pad3d resize_as roll rot90 rrelu_with_noise_backward select_backward select_scatter selu
    sigmoid_backward silu_backward sinc slice_backward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
    soft_margin_loss_backward softplus softplus_backward softshrink special_entr special_log_ndtr special_ndtr
    special_xlog1py square squeeze_copy std std_mean t_copy take tanh_backward threshold threshold_backward trace
    transpose_copy tril tril_indices triu triu_indices unbind_copy unfold_backward unfold_copy unsqueeze_copy
    upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
    value_selecting_reduction_backward vdot view_copy xlogy zero
"""


def table(left_to_torch: frozenset[str] = frozenset()) -> dict[Any, Any]:
    """Return the decompositions by ATen op, as ``aot_autograd`` takes them, without those of ops that torch runs."""
    torch = torch_for("fuser_lab.bridge")
    from_names = torch._decomp.get_decompositions  # noqa: SLF001 - torch has no public name for it
    left = frozenset(".".join(name.split(".")[:2]) for name in left_to_torch)  # whatever the overload
    packets = [
        getattr(torch.ops.aten, name) for name in NAMES.split()
        if hasattr(torch.ops.aten, name) and not is_named(f"aten.{name}", left)
    ]
    found: dict[Any, Any] = from_names(packets)
    found |= {op: mended for op, mended in batch_norm.decompositions().items() if op in found}
    own = composites.decompositions()
    return found | {op: written for op, written in own.items() if not is_named(str(op), left)}


def is_named(target: str, names: frozenset[str]) -> bool:
    """Whether names contain an op such as ``"aten._softmax.int"``: its full, overload-free, or common name."""
    space, _, rest = target.partition(".")
    bare = rest.partition(".")[0]
    return not names.isdisjoint((target, f"{space}.{bare}", bare, bare.lstrip("_"), f"{space}.{bare.lstrip('_')}"))
