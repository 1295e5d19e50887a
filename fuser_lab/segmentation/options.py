"""Options of the segmenter, under our names and under nvFuser's."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fuser_lab.arguments import (
    FLAG,
    TEXT,
    Kind,
    instance,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    take_fields,
    takes,
    whole,
)
from fuser_lab.cost.device import CAPABILITY
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import InputError
from fuser_lab.ir import Fusion
from fuser_lab.passes import PASSES, PRESEGMENTATION, AllocationDomain, Pass, PassPipeline
from fuser_lab.passes.base import Callback


class SegmentSetMeaning(enum.Enum):
    """The meaning of ``segment_set``."""

    HINT = "hint"  # as in nvFuser: a segment may end with it; another path around it may still be merged
    CUT = "cut"  # no segment contains expressions both before and after it, on any path
    IGNORE = "ignore"  # a plain copy


TOP_DOWN_ONLY = ("cut_reshape_inputs", "cut_resize_inputs", "pieces_by_depth")
FACTORIES = frozenset({"full", "iota", "constant"})
LAYOUT_MODES = ("outputs", "propagate", "negotiate")
PRECISIONS = ("eager", "fused")  # after which ops 16-bit values are rounded: all, as torch does, or stored ones

_ENABLE = (
    "fuse_matmul", "io_to_lower_precision", "memory_promotion", "resize_scheduler", "warp_specialized_normalization",
)
# The scheduler that a name denotes; empty if fuser_lab has none.
_DISABLE = {"resize_scheduler": SchedulerType.RESIZE.value, "kernel_reuse": "", "parallel_compile": ""}
_ENTRIES = ("executor_cache", "segmenter_only")
_PHASES = {
    "run_combine_reductions": "combine_reductions",
    "run_herrmann_merge": "level_merge",
    "run_final_merge": "final_merge",
    "run_translate_welford": "welford",
}
# Passes of nvFuser that are not needed here: sizes are numbers, so axioms and substitution are unnecessary, and there
# is one GPU.
_NEEDLESS = (
    "AddAxiomsPass", "ExactMappedExtentSubstitutionPass", "PropagateShardingsPass", "DecomposeReshardingsPass",
    "ReorderShardedAxisPass", "FinalizeMultideviceDomainsPass",
)
_PASSES = {f"{p.nvfuser}Pass": p.name for p in PRESEGMENTATION.passes if p.nvfuser} | dict.fromkeys(_NEEDLESS, "")



def _names(*names: str, also: Kind | None = None) -> Kind:
    """Return the kind of lists of some names."""
    name = one_of(*sorted(names))
    accepted = f"a list of names among {', '.join(sorted(names))}"
    return list_of(name if also is None else name | also, accepted, lazy=True)


_SCHEDULERS = tuple(scheduler.value for scheduler in SchedulerType)
_FIELDS = {
    "segment_set": one_of(*(meaning.value for meaning in SegmentSetMeaning)) | instance(SegmentSetMeaning),
    "forward_factories": _names(*FACTORIES),
    "disabled_passes": _names(*(entry.name for entry in PRESEGMENTATION.passes)),
    "disabled_schedulers": _names(*_SCHEDULERS, also=instance(SchedulerType)),
    "least_capability": optional(CAPABILITY),
    "layout_mode": one_of(*LAYOUT_MODES),
    "precision": one_of(*PRECISIONS),
    "search_states": whole(0),
    "search_seconds": optional(number(0), "for no limit"),
    "search_calls": optional(whole(0), "for no limit"),
}
_NVFUSER = {
    "enable": _names(*_ENABLE),
    "disable": _names(*_DISABLE),
    "disable_preseg": _names(*_PASSES),
    "segmenter": optional(mapping(one_of(*_PHASES), FLAG, "a dict of switches")),
    "entry": one_of(*_ENTRIES),
    "requires": optional(TEXT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmenterOptions:
    """Which phases run and how hints are read; the defaults are nvFuser's.

    Attributes
    ----------
    segment_set
        "hint", "cut" or "ignore".
    forward_inputs
        Recompute chains of unary ops from inputs in each reader.
    forward_broadcasts
        Whether broadcasts and expands of inputs belong to these chains, so that each segment recomputes the broadcast
        tables that it reads (NVIDIA/Fuser #3659, never merged). It has no effect without ``forward_inputs``.
    forward_factories
        Names of factory ops that are recomputed in each reader: ``"full"``, the only one that nvFuser forwards,
        ``"iota"`` and ``"constant"`` (tensors computed from neither inputs nor random numbers, whatever the ops).
    forward_factory_outputs
        Whether these are also recomputed if the result is an output of the fusion: a separate segment writes the
        output, and no segment reads it. Otherwise it is stored once, and other segments read it, as in nvFuser.
    privatize
        Whether each reader of a widening cast, or of a squeeze with two readers, computes it for itself.
    whole_fusion
        Whether the whole fusion is tried first, unless a cut forbids it. The strategies "saving", "optimal" and
        "unfused" do not have this step.
    combine_reductions, level_merge, final_merge
        Whether these phases run.
    welford
        Whether a Welford becomes sums, mean first, if its rows stay on chip between the two passes.
    connect_through_inputs
        Top-down: pieces that share only an input are tried together.
    cut_reshape_inputs, cut_resize_inputs
        Top-down: edges into reshapes, or into slice, pad and cat, are cut as well. Other strategies refuse them.
    pieces_by_depth
        Top-down: if another path leads around a cut, the expressions on both sides of it are separated by their depth,
        the number of cut edges on the path to them; NVIDIA/Fuser issue #2224 leaves them in one piece. If
        ``segment_set`` is "cut", pieces are always separated in this way. Other strategies refuse this option.
    io_to_lower_precision
        Whether Float tensors that pass between segments and lead to a Half or BFloat16 output are stored in that dtype,
        which halves their bytes and rounds them. It applies to the segmenter's cuts; tensors that cross boundaries made
        by edits (`Plan.cut`, `Plan.move`) keep their dtype.
    disabled_passes
        Names of presegmentation passes that do not run.
    disabled_schedulers
        Names of schedulers that refuse everything.
    memory_promotion
        Whether the operand of take_along_axis, a slice or a pad may be computed in the same segment.
    fuse_matmul
        Whether matrix products may share a segment with other expressions; the array library then evaluates that
        segment.
    least_capability
        Minimum compute capability of the target, such as ``(9, 0)``; other targets are refused.
    layout_mode
        Memory layouts of tensors that segments write: ``"outputs"`` (outputs of the fusion follow the layouts of
        inputs, as in nvFuser), ``"propagate"`` (also tensors between segments), or ``"negotiate"`` (the layouts with
        the lowest cost for producer and consumers).
    precision
        Where kernels round values of Half and BFloat16: ``"eager"``, after each op, as the definition says, or
        ``"fused"``, only where a segment stores them, as ``torch.compile`` does.
    search_states
        Maximum number of partial segments that ``strategy="optimal"`` and certificates examine; a question to the
        schedulers counts as ten. The answer is the same on every machine.
    search_seconds
        Maximum number of seconds that they search; None for no limit. With a limit in seconds, the answer depends on
        the speed and load of the machine.
    search_calls
        How often the plan is expected to run: ``strategy="fastest"`` searches for at most a tenth of what it may
        save in so many runs, compared with the bottom-up plan, in processor time. None for no such limit.
    """

    segment_set: SegmentSetMeaning = SegmentSetMeaning.HINT
    forward_inputs: bool = True
    forward_broadcasts: bool = False
    forward_factories: frozenset[str] = frozenset({"full"})
    forward_factory_outputs: bool = False
    privatize: bool = True
    whole_fusion: bool = True
    combine_reductions: bool = True
    level_merge: bool = True
    final_merge: bool = True
    welford: bool = True
    connect_through_inputs: bool = True
    cut_reshape_inputs: bool = False
    cut_resize_inputs: bool = False
    pieces_by_depth: bool = False
    io_to_lower_precision: bool = False
    disabled_passes: frozenset[str] = frozenset()
    disabled_schedulers: frozenset[str] = frozenset()
    memory_promotion: bool = False
    fuse_matmul: bool = False
    least_capability: tuple[int, int] | None = None
    layout_mode: str = "outputs"
    precision: str = "eager"
    search_states: int = 400_000
    search_seconds: float | None = None
    search_calls: int | None = None

    def __post_init__(self) -> None:
        """Convert names of meanings and schedulers, and raise for values that a field does not accept."""
        switches = {switch.name: FLAG for switch in fields(self) if isinstance(switch.default, bool)}
        take_fields(self, **switches, **_FIELDS)
        for name in ("forward_factories", "disabled_passes"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        disabled = frozenset(SchedulerType(entry).value for entry in self.disabled_schedulers)
        object.__setattr__(self, "disabled_schedulers", disabled)
        object.__setattr__(self, "segment_set", SegmentSetMeaning(self.segment_set))

    def check_strategy(self, strategy: object) -> None:
        """Raise InputError if an option is on that the strategy, a name or a function, does not accept."""
        on = [name for name in TOP_DOWN_ONLY if getattr(self, name)]
        if on and strategy != "top_down":
            name = repr(strategy) if isinstance(strategy, str) else "that is a function"
            msg = f"segment: the strategy {name} does not accept {on[0]}; only 'top_down' does."
            raise InputError(msg)

    def for_strategy(self, strategy: object) -> "SegmenterOptions":
        """Return the options without the options that the strategy does not accept."""
        if strategy == "top_down":
            return self
        return replace(self, cut_reshape_inputs=False, cut_resize_inputs=False, pieces_by_depth=False)

    @classmethod
    @takes("from_nvfuser", **_NVFUSER)
    def from_nvfuser(
        cls,
        *,
        enable: Iterable[str] = (),
        disable: Iterable[str] = (),
        disable_preseg: Iterable[str] = (),
        segmenter: Mapping[str, bool] | None = None,
        entry: str = "executor_cache",
        requires: str | None = None,
    ) -> "SegmenterOptions":
        """Return the options that nvFuser's names denote.

        Parameters
        ----------
        enable
            Names of ``NVFUSER_ENABLE``: ``fuse_matmul``, ``memory_promotion`` and ``io_to_lower_precision``;
            ``resize_scheduler``, which is always on, and ``warp_specialized_normalization``, which does not affect
            cuts, are also accepted.
        disable
            Names of ``NVFUSER_DISABLE``: ``resize_scheduler``; ``kernel_reuse`` and ``parallel_compile`` are accepted
            and do not affect cuts.
        disable_preseg
            Class names of presegmentation passes, such as ``MarkAliasesPreparePass``; those that fuser_lab does not
            have are accepted and have no effect.
        segmenter
            Fields of ``SegmentCandidateFinderOptions``: ``run_combine_reductions``, ``run_herrmann_merge`` (rounds by
            levels), ``run_final_merge``, ``run_translate_welford``.
        entry
            ``"executor_cache"``, the path of a user's call, or ``"segmenter_only"``, the segmenter alone: no passes,
            and no attempt to schedule the whole fusion.
        requires
            Requirements on the device; only a compute capability in this text counts, such as
            ``"compute capability 9.0"``.

        Raises
        ------
        InputError
            If a name is unknown.
        """
        passes = {_PASSES[name] for name in disable_preseg}
        phases: dict[str, Any] = {_PHASES[name]: value for name, value in (segmenter or {}).items()}
        alone = entry == "segmenter_only"
        return cls(
            **phases,
            whole_fusion=not alone,
            disabled_passes=frozenset(name for name in (_PASSES.values() if alone else passes) if name),
            disabled_schedulers=frozenset(_DISABLE[name] for name in disable if _DISABLE[name]),
            memory_promotion="memory_promotion" in enable,
            fuse_matmul="fuse_matmul" in enable,
            io_to_lower_precision="io_to_lower_precision" in enable,
            least_capability=_capability(requires),
        )


def run_passes(
    fusion: Fusion, options: SegmenterOptions, passes: Sequence[Pass] = PASSES, callback: Callback | None = None,
) -> Fusion:
    """Return a concretized fusion after the passes that the options enable; see `PassPipeline.run`."""
    everywhere = AllocationDomain(every_tensor=options.layout_mode == "propagate")
    pipeline = PassPipeline(tuple(everywhere if type(p) is AllocationDomain else p for p in passes))
    return pipeline.run(
        fusion, disabled=options.disabled_passes.intersection(p.name for p in passes),
        without_schedulers=options.disabled_schedulers, callback=callback,
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    match = re.search(r"compute capability (\d+)\.(\d+)", text or "")
    return None if match is None else (int(match[1]), int(match[2]))
