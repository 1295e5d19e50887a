"""Functions of nvFuser that decide something about segments and that no function here follows, and why."""

from collections.abc import Mapping

NOT_READ = "not read"

NOT_FOLLOWED: Mapping[str, str] = {
    "scheduler/registry.cpp: checkCanSchedule (40-47)": (
        "says that a scaled_mm is unsupported without refusing it; no kernel accepts one, because no output has the "
        "contracted axis"
    ),
    "scheduler/registry_utils.cpp: rejectScheduleFusionGlobalBufferRequirement (1075-1108)": (
        "its ops do not exist here"
    ),
    "scheduler/registry_utils.cpp: requiresForwardViewReplay (279-414)": (
        "refuses nothing that hasIncompatibleTransforms accepts: reshapes have no broadcast axes"
    ),
    "scheduler/registry_utils.cpp: hasNonTerminalBlockQuantizeOp (847-863)": "its ops do not exist here",
    "scheduler/registry_utils.cpp: hasCyclicReshape (1151-1165, 1189-1203)": (
        "reshapes that form a cycle are refused in any order, also if none is computed from another"
    ),
    "scheduler/pointwise.cpp: canScheduleRunTime (289-380)": "only about block quantization, which does not exist here",
    "scheduler/reduction.cpp, transpose.cpp, resize.cpp, matmul.cpp: sub-byte dtypes": "such dtypes do not exist here",
    "scheduler/utils.cpp: isResharding (2986-2989)": "one device",
    "scheduler/communication.cpp": "one device",
    "scheduler/cutlass.cpp": f"off by default, and for compute capability 10.0 only; its patterns were {NOT_READ}",
    "scheduler/matmul_utils.cpp: isMatmulFusionDefinitionSupported (679-706, 735-760)": NOT_READ,
    "scheduler/mma_utils.cpp: getTensorRoles, getOperandInnerDims": NOT_READ,
    "scheduler/mma_utils.cpp: findMatmulPatterns (1745-1837), products written as mul and sum": (
        "[an intended difference](design.md#deliberate-differences-from-nvfuser)"
    ),
    "scheduler/normalization_outer.cpp: canScheduleRunTime (499-509, 571-589)": (
        "implied by the columns of a block that have to fit"
    ),
    "scheduler/vectorize_helper.cpp: getVectorizationFactor, besides persistent.vector_width": (
        NOT_READ
    ),
    "scheduler/normalization_inner_outer.cpp: preferWarpSpecialized (27-65)": "chooses parameters of a kernel",
    "scheduler/reduction.cpp: mayUseTma, mayUseTmaOuter (198-304)": "choose parameters of a kernel",
    "fusion_segmenter.cpp: eraseInputDistinctRootDomains (1430-1524)": "segments keep the axes of the fusion",
    "fusion_segmenter.cpp: resolveScalarsInGroup, removeScalarEdges (4620-4845)": "sizes are known before segmentation",
    "fusion_segmenter.cpp: SegmentedGroup::stablyOrderedExprs (2219-2283)": "orders expressions of finished segments",
    "fusion_segmenter.cpp: revertInputOutputPrecisionChanges (1005-1059)": "segments are not changed in place",
    "multidevice": "one device",
}
