"""Older spellings of calls in scripts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """An older form of a call.

    ``now`` is the current name, ``keywords`` are the current names of renamed keywords, and ``dropped`` keywords are
    not needed. ``positions`` names the positional arguments of an older form by their number; None drops one.
    """

    now: str | None = None
    keywords: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    positions: Mapping[int, tuple[str | None, ...]] = field(default_factory=dict)


_REDUCTION = Spelling(keywords={"axes": "dims", "axis": "dims"})
_RESHAPE = Spelling(
    now="reshape", keywords={"shape": "new_shape"}, dropped=("original_shape",),
    positions={3: ("arg", None, "new_shape")},
)

OPS: Mapping[str, Spelling] = {
    "view": _RESHAPE,
    "reshape": _RESHAPE,
    "squeeze": Spelling(
        keywords={"dim": "dims", "axes": "dims"}, dropped=("original_shape",), positions={3: ("arg", None, "dims")},
    ),
    "sum": _REDUCTION,
    "prod": _REDUCTION,
    "max": _REDUCTION,
    "min": _REDUCTION,
    "var": _REDUCTION,
    "var_mean": _REDUCTION,
    "welford": Spelling(keywords={"axes": "dims"}),
    "permute": Spelling(keywords={"axes": "dims"}),
    "broadcast_in_dim": Spelling(keywords={"output_shape": "shape"}),
    "expand": Spelling(keywords={"output_shape": "shape"}),
    "full": Spelling(keywords={"size": "shape", "arg": "fill_value"}),
    "tensor_sizes": Spelling(now="shape"),
    "torch_gather": Spelling(now="gather"),
    "sdpfa_fwd": Spelling(positions={6: ("query", "key", "value", "dropout_p", "is_causal", "scale")}),
}

METHODS: Mapping[str, Spelling] = {
    "define_tensor": Spelling(keywords={"symbolic_sizes": "shape", "contiguous": "contiguity", "ndims": "ndim"}),
    "define_constant": Spelling(now="define_scalar"),
    "define_scalar": Spelling(keywords={"constant": "value"}),
    "define_vector": Spelling(keywords={"values": "size"}),
    "add_output": Spelling(keywords={"alias": "alias_input"}),
}

# Booleans that were printed as 0 and 1.
_FLAGS = ("manual_normalization", "manual_padding", "keepdim", "is_cpu", "squeeze_expanded")

_HIGHEST_RANK = 64  # axes of a tensor, as in NumPy 2
_LETTERS = {"t": True, "f": False, "n": None}


def modern(
    table: Mapping[str, Spelling], name: str, args: list[Any], keywords: dict[str, Any],
) -> tuple[str, list[Any], dict[str, Any]]:
    """Return a call in its current form."""
    spelling = table.get(name, Spelling())
    current = {spelling.keywords.get(key, key): value for key, value in keywords.items() if key not in spelling.dropped}
    for flag in _FLAGS:
        if type(current.get(flag)) is int and current[flag] in {0, 1}:
            current[flag] = bool(current[flag])
    names = spelling.positions.get(len(args), ())
    # Current forms of the same length end in a bool, older ones in a list.
    if names and (None not in names or isinstance(args[-1], list | tuple)):
        first, *rest = zip(names, args, strict=True)
        current |= {key: value for key, value in rest if key is not None}
        args = [first[1]]
    return spelling.now or name, args, current


def tensor_arguments(
    args: list[Any], keywords: dict[str, Any], *, is_old: bool,
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of define_tensor in their current form."""
    rank = args[0] if args and is_whole(args[0]) else keywords.pop("ndim", None)
    if is_whole(rank):
        if not 0 <= rank <= _HIGHEST_RANK:
            raise DefinitionError(f"define_tensor: a tensor with {short_text(rank)} axes is not read.")
        if len(args) > 1 and isinstance(args[1], DataType):
            keywords = keywords | {"dtype": args[1]}
        args, keywords = [], keywords | {"shape": [-1] * int(rank)}
    if len(args) > 1 and isinstance(args[1], list | tuple) and args[1] and all(map(is_whole, args[1])):
        names = ("sizes", "strides", "dtype", "static_sizes", "is_cpu")
        args, keywords = [], dict(zip(names, args, strict=False)) | keywords
    shape, flags = keywords.get("shape", args[0] if args else None), keywords.get("contiguity")
    if isinstance(shape, list | tuple) and len(shape) > _HIGHEST_RANK:
        raise DefinitionError(f"define_tensor: a tensor with {len(shape)} axes is not read.")
    if isinstance(flags, str):
        flags = [_LETTERS.get(letter.lower(), letter) for letter in flags]
    if isinstance(flags, list | tuple) and isinstance(shape, list | tuple):
        ones = [size == 1 for size in shape]
        if is_old and len(flags) == len(shape):
            # Broadcast axes had a flag as well.
            flags = [None if is_broadcast else flag for is_broadcast, flag in zip(ones, flags, strict=True)]
        elif len(flags) == len(shape) - sum(ones):
            # And for a while they had no entry at all.
            rest = iter(flags)
            flags = [None if is_broadcast else next(rest) for is_broadcast in ones]
        keywords = keywords | {"contiguity": flags}
    return args, keywords
