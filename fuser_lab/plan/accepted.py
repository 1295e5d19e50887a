"""The types of the arguments that methods of plans and segments accept."""

from fuser_lab import targets
from fuser_lab.arguments import TEXT, list_of, optional, whole

_KERNELS_FOR = " or ".join(map(repr, targets.names()))
TARGET = TEXT.but(lambda name: name in targets.names(), _KERNELS_FOR).worded(_KERNELS_FOR)
_DEVICES = ", ".join(targets.target_of(name).accepted for name in targets.names())
RUNS_ON = TEXT.but(lambda name: targets.find(name) is not None, _DEVICES).worded(_DEVICES)
SEGMENT = whole(accepted="the number of a segment")
TENSOR = TEXT.worded("a tensor's name")
SEGMENTS = optional((SEGMENT | list_of(SEGMENT, "a list of numbers of segments", least=1)).worded(
    "the number of a segment or a list of such numbers",
))
TENSOR_OR_SEGMENT = (TEXT | whole()).worded("a tensor's name or a segment's number")
READERS = optional((TEXT | list_of(TEXT, "a list of tensors' names")).worded("a reader's name or a list of such names"))
_PLACE_TEXT = "a tensor's name, or the pair of a tensor and its reader"
PLACE = (TENSOR | list_of(TEXT, _PLACE_TEXT, least=2, most=2)).worded(_PLACE_TEXT)
