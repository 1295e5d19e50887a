"""Every reason a scheduler or the segmenter gives, with its sentence, in one place."""

import enum


class ReasonCode(enum.Enum):
    """Closed list of reasons."""

    SEGMENT_SET_INSIDE = "segment_set_inside"
    ACROSS_CUT = "across_cut"
    CYCLE = "cycle"
    NOT_IMPLEMENTED = "not_implemented"
    DISABLED = "disabled"


TEXTS: dict[ReasonCode, str] = {
    ReasonCode.SEGMENT_SET_INSIDE: "{tensor} is made by segment_set and used inside the candidate",
    ReasonCode.ACROSS_CUT: "{before} comes before the cut at {tensor} and {after} after it",
    ReasonCode.CYCLE: "one kernel for both would close a cycle through {through}",
    ReasonCode.NOT_IMPLEMENTED: "this scheduler is not implemented here yet",
    ReasonCode.DISABLED: "this scheduler is switched off",
}
