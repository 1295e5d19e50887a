"""Every reason a scheduler or the segmenter gives, with its sentence, in one place."""

import enum


class ReasonCode(enum.Enum):
    """Closed list of reasons."""

    SEGMENT_SET_INSIDE = "segment_set_inside"
    NOT_IMPLEMENTED = "not_implemented"
    DISABLED = "disabled"


TEXTS: dict[ReasonCode, str] = {
    ReasonCode.SEGMENT_SET_INSIDE: "{tensor} is made by segment_set and used inside the candidate",
    ReasonCode.NOT_IMPLEMENTED: "this scheduler is not implemented here yet",
    ReasonCode.DISABLED: "this scheduler is switched off",
}
