"""Switches of the segmenter, under our names and under nvFuser's."""

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
    listed,
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
    """How ``segment_set`` is read."""

    HINT = "hint"  # nvFuser today: a segment may end with it; another path around it may still be merged
    CUT = "cut"  # nothing before and after it, on any path, is in one segment
    IGNORE = "ignore"  # a plain copy


TOP_DOWN_ONLY = ("cut_reshape_inputs", "cut_resize_inputs", "pieces_by_depth")
FACTORIES = frozenset({"full", "iota", "constant"})
LAYOUT_MODES = ("outputs", "propagate", "negotiate")

_ENABLE = (
    "fuse_matmul", "io_to_lower_precision", "memory_promotion", "resize_scheduler", "warp_specialized_normalization",
)
# The scheduler that goes with a name; empty where nothing here does.
_DISABLE = {"resize_scheduler": SchedulerType.RESIZE.value, "kernel_reuse": "", "parallel_compile": ""}
_ENTRIES = ("executor_cache", "segmenter_only")
_PHASES = {
    "run_combine_reductions": "combine_reductions",
    "run_herrmann_merge": "level_merge",
    "run_final_merge": "final_merge",
    "run_translate_welford": "welford",
}
# Passes of nvFuser that have nothing to do here: sizes are numbers, so they need neither axioms nor substitution; and
# there is one GPU.
_NEEDLESS = (
    "AddAxiomsPass", "ExactMappedExtentSubstitutionPass", "PropagateShardingsPass", "DecomposeReshardingsPass",
    "ReorderShardedAxisPass", "FinalizeMultideviceDomainsPass",
)
_PASSES = {f"{p.nvfuser}Pass": p.name for p in PRESEGMENTATION.passes if p.nvfuser} | dict.fromkeys(_NEEDLESS, "")



def _names(*known: str, also: Kind | None = None) -> Kind:
    """Return the kind of lists of some names."""
    name = one_of(*sorted(known))
    return listed(name if also is None else name | also, f"a list of names among {', '.join(sorted(known))}", lazy=True)


_SCHEDULERS = tuple(scheduler.value for scheduler in SchedulerType)
_FIELDS = {
    "segment_set": one_of(*(meaning.value for meaning in SegmentSetMeaning)) | instance(SegmentSetMeaning),
    "forward_factories": _names(*FACTORIES),
    "disabled_passes": _names(*(one.name for one in PRESEGMENTATION.passes)),
    "disabled_schedulers": _names(*_SCHEDULERS, also=instance(SchedulerType)),
    "least_capability": optional(CAPABILITY),
    "layout_mode": one_of(*LAYOUT_MODES),
    "search_states": whole(0),
    "search_seconds": optional(number(0), "for no limit"),
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
        Whether broadcasts and expands of inputs belong to these chains, so that each segment that reads a broadcast
        table makes it anew (NVIDIA/Fuser #3659, never merged). Without ``forward_inputs`` it does nothing.
    forward_factories
        Names of factory ops that are recomputed in each reader: ``"full"``, which is all that nvFuser forwards,
        ``"iota"`` and ``"constant"`` (tensors computed from neither inputs nor random numbers, whatever the ops).
    forward_factory_outputs
        Whether these are also recomputed where the result is an output of the fusion: a segment of its own writes the
        output, and nobody reads it. Otherwise it is stored once, and other segments read it, as in nvFuser.
    privatize
        Whether each reader of a widening cast, or of a squeeze with two readers, computes it for itself.
    whole_fusion
        Whether the fusion is tried in one piece before anything else, where no cut forbids it. The strategies
        "saving", "optimal" and "unfused" have no such step.
    combine_reductions, level_merge, final_merge
        Whether these phases run.
    welford
        Whether a Welford becomes sums, mean first, where its rows stay on chip between the two passes.
    connect_through_inputs
        Top-down: pieces that share only an input are tried together.
    cut_reshape_inputs, cut_resize_inputs
        Top-down: edges into reshapes, or into slice, pad and cat, are cut as well. Other strategies refuse them.
    pieces_by_depth
        Top-down: where another path leads around a cut, the expressions on both sides of it are parted by their depth,
        the number of cut edges on the way to them; NVIDIA/Fuser issue #2224 leaves them in one piece. Where
        ``segment_set`` is "cut", pieces are parted so in any case. Other strategies refuse it.
    io_to_lower_precision
        Whether Float tensors that pass between segments and lead to a Half or BFloat16 output pass as such, which
        halves their bytes and rounds them. It holds for what the segmenter cuts; boundaries made by edits
        (`Plan.cut`, `Plan.move`) keep the dtype of what crosses them.
    disabled_passes
        Names of pre-segmentation passes that do not run.
    disabled_schedulers
        Names of schedulers that refuse everything.
    memory_promotion
        Whether what take_along_axis, a slice or a pad reads may be computed in the same segment.
    fuse_matmul
        Whether matrix products share a segment with what is around them; the array library evaluates it then.
    least_capability
        Compute capability that the target must have at least, as ``(9, 0)``; other targets are refused.
    layout_mode
        How tensors that segments write lie in memory: ``"outputs"`` (results of the fusion lie like inputs, as in
        nvFuser), ``"propagate"`` (also what passes between segments), or ``"negotiate"`` (as costs producer and
        consumers least).
    search_states
        How many partial segments ``strategy="optimal"`` and certificates look at, at most. The answer is the same on
        every machine.
    search_seconds
        How many seconds they search at most; None for as long as the states last. With a limit in seconds the answer
        depends on how busy the machine is.
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
    search_states: int = 400_000
    search_seconds: float | None = None

    def __post_init__(self) -> None:
        """Take meanings and schedulers by name too, and raise for what a field does not take."""
        switches = {switch.name: FLAG for switch in fields(self) if isinstance(switch.default, bool)}
        take_fields(self, **switches, **_FIELDS)
        for name in ("forward_factories", "disabled_passes"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        disabled = frozenset(SchedulerType(given).value for given in self.disabled_schedulers)
        object.__setattr__(self, "disabled_schedulers", disabled)
        object.__setattr__(self, "segment_set", SegmentSetMeaning(self.segment_set))

    def check_strategy(self, strategy: object) -> None:
        """Raise InputError if a switch is on that the strategy, a name or a function, has no use for."""
        on = [name for name in TOP_DOWN_ONLY if getattr(self, name)]
        if on and strategy != "top_down":
            name = repr(strategy) if isinstance(strategy, str) else "that is a function"
            msg = f"segment: the strategy {name} does not take {on[0]}; only 'top_down' makes such cuts."
            raise InputError(msg)

    def for_strategy(self, strategy: object) -> "SegmenterOptions":
        """Return the options with the switches off that the strategy does not take."""
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
        """Return the switches that nvFuser's names stand for.

        Parameters
        ----------
        enable
            Names of ``NVFUSER_ENABLE``: ``fuse_matmul``, ``memory_promotion`` and ``io_to_lower_precision``;
            ``resize_scheduler``, which is on anyhow, and ``warp_specialized_normalization``, which changes no cut, are
            taken too.
        disable
            Names of ``NVFUSER_DISABLE``: ``resize_scheduler``; ``kernel_reuse`` and ``parallel_compile`` are taken and
            change no cut.
        disable_preseg
            Class names of pre-segmentation passes, as ``MarkAliasesPreparePass``; those that do not exist here are
            taken and change nothing.
        segmenter
            Fields of ``SegmentCandidateFinderOptions``: ``run_combine_reductions``, ``run_herrmann_merge`` (rounds by
            levels), ``run_final_merge``, ``run_translate_welford``.
        entry
            ``"executor_cache"``, what a user's call runs through, or ``"segmenter_only"``, the segmenter alone: no
            passes, and no attempt to take the fusion in one piece.
        requires
            What the device must have; of this text a compute capability counts, as in ``"compute capability 9.0"``.

        Raises
        ------
        InputError
            If a name is none of these.
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


def rewritten(
    fusion: Fusion, options: SegmenterOptions, passes: Sequence[Pass] = PASSES, callback: Callback | None = None,
) -> Fusion:
    """Return a concretized fusion after those of the passes that the options leave on; see `PassPipeline.run`."""
    everywhere = AllocationDomain(every_tensor=options.layout_mode == "propagate")
    pipeline = PassPipeline(tuple(everywhere if type(p) is AllocationDomain else p for p in passes))
    return pipeline.run(
        fusion, disabled=options.disabled_passes.intersection(p.name for p in passes),
        without_schedulers=options.disabled_schedulers, callback=callback,
    )


def _capability(text: str | None) -> tuple[int, int] | None:
    found = re.search(r"compute capability (\d+)\.(\d+)", text or "")
    return None if found is None else (int(found[1]), int(found[2]))
