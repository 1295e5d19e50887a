"""Replaying the transforms of a schedule by hand; an illegal one raises ScheduleError with one sentence that says why.

`replay` is a fold: each transform is one function from a `ScheduledFusion` to the next. Only conditions that do not
depend on sizes are checked here; the others are checked when a kernel is built.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.alike_transforms import bounded_transform_backward, parallelize_like, transform_like
from fuser_lab.ir.copy_transforms import cache_after, cache_before, cache_fork, rfactor
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.inline_transforms import compute_at, inline_at, inline_most
from fuser_lab.ir.kernel_transforms import cluster, grid, launch_bounds, read_again, set_params, specialize, template
from fuser_lab.ir.loop_transforms import merge, parallelize, reorder, set_memory_type, split
from fuser_lab.ir.transform import Rules, ScheduledFusion, Transform
from fuser_lab.ir.transform_arguments import produce_position


def replay(fusion: Fusion, transforms: Iterable[Transform], rules: Rules) -> ScheduledFusion:
    """Return a fusion after transforms.

    Raises
    ------
    ScheduleError
        If one of them is illegal; the message says why.
    UnsupportedError
        If one requests a feature that no kernel here has.
    """
    scheduled = ScheduledFusion.start(fusion)
    for transform in transforms:
        scheduled = apply(scheduled, transform, rules)
    return scheduled


def apply(scheduled: ScheduledFusion, transform: Transform, rules: Rules) -> ScheduledFusion:
    """Return a schedule after one more transform; raises as `replay` does."""
    if transform.tensor and transform.tensor not in scheduled.tensors:
        msg = f"{transform.kind}: {transform.tensor} is not a tensor that any output of this fusion needs."
        raise ScheduleError(msg)
    after = _KINDS[transform.kind](scheduled, transform, rules)
    return replace(after, transforms=(*scheduled.transforms, transform))


def texts(scheduled: ScheduledFusion, rules: Rules) -> dict[str, str]:
    """Return each tensor as IR text with its loops, by name."""
    return {
        name: tensor.text(produce_position(scheduled, name, rules)) for name, tensor in scheduled.tensors.items()
    }


_KINDS: Mapping[str, Callable[[ScheduledFusion, Transform, Rules], ScheduledFusion]] = {
    "split": split,
    "merge": merge,
    "reorder": reorder,
    "parallelize": parallelize,
    "set_memory_type": set_memory_type,
    "cache_after": cache_after,
    "cache_before": cache_before,
    "cache_fork": cache_fork,
    "rfactor": rfactor,
    "transform_like": transform_like,
    "bounded_transform_backward": bounded_transform_backward,
    "parallelize_like": parallelize_like,
    "inline_at": inline_at,
    "inline_most": inline_most,
    "compute_at": compute_at,
    "launch_bounds": launch_bounds,
    "grid": grid,
    "cluster": cluster,
    "read_again": read_again,
    "specialize": specialize,
    "set_params": set_params,
    "on_blocks": template,
    "on_cores": template,
}
