"""What users call tensors: variables of the user's code, which are accepted and shown beside the fusion's own names."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from fuser_lab.arguments import listing, short_text
from fuser_lab.errors import FuserLabError, IllegalEdit, InputError
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.val import TensorView

Names = tuple[tuple[str, str], ...]  # the user's names of tensors, each with the fusion's name
_MOST_MATCHES: Final = 4  # names that an error suggests, or a note lists
OF_GRAPH: Final = "%"  # begins the names of a captured graph's nodes, as in torch's text of it
LONGEST: Final = 18  # characters of a name in a picture; a tooltip has all of them
_TENSOR: Final = re.compile(r"\bT\d+(?:_\w+)?\b")


def tensor_named(fusion: Fusion, name: str, kind: type[FuserLabError] = IllegalEdit) -> TensorView:
    """Return the tensor of a name; raise an error of this ``kind`` if there is none."""
    tensor = fusion.tensors.get(name)
    if tensor is None:
        raise kind(f"the fusion has no tensor called {short_text(name)}; it has {listing(fusion.tensors)}.")
    return tensor


def tensor_called(called: str, tensors: Collection[str], names: Names, kind: type[FuserLabError]) -> str:
    """Return the fusion's name of a tensor that is given by this name or by the user's name.

    An unknown name that resembles no other is returned unchanged, so that the caller refuses it.

    Raises
    ------
    FuserLabError
        Of this ``kind``, if the user has several tensors of this name, or the name only resembles others.
    """
    if called in tensors:
        return called
    matches = tuple(dict.fromkeys(tensor for name, tensor in names if name == called)) or tuple(
        dict.fromkeys(tensor for name, tensor in names if name == f"{OF_GRAPH}{called}")
    )
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise kind(f"{called} is the name of several tensors: {listing(matches)}; choose from these.")
    matches = close_matches(called, tensors, names)
    if matches:
        raise kind(f"the fusion has no tensor called {called!r}; close matches are {', '.join(matches)}.")
    return called


def close_matches(called: str, tensors: Iterable[str], names: Names) -> tuple[str, ...]:
    """Return names that resemble a name, the user's names with the fusion's name in brackets."""
    tensors_of: dict[str, Sequence[str]] = {}
    for name, tensor in names:
        tensors_of[name] = (*tensors_of.get(name, ()), tensor)
    words = {word.lower(): word for word in (*tensors, *tensors_of)}
    similar = [words[word] for word in get_close_matches(called.lower(), words, _MOST_MATCHES)]
    return tuple(f"{w} ({', '.join(dict.fromkeys(tensors_of[w]))})" if w in tensors_of else w for w in similar)


def names_by_tensor(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the first name that the user gives to each tensor.

    Names of a captured graph are not the user's, and names that read like those of tensors would be mistaken for them.
    """
    called: dict[str, str] = {}
    for name, tensor in names:
        if not name.startswith(OF_GRAPH) and _TENSOR.fullmatch(name) is None:
            called.setdefault(tensor, name)
    return called


def numbers_notes(names: Names) -> list[str]:
    """Return a note if variables that read like names of tensors, as in scripts of nvFuser, are other tensors."""
    pairs = [(name, tensor) for name, tensor in names if _TENSOR.fullmatch(name) and name != tensor]
    matches = [f"{name} of the script is {tensor}" for name, tensor in pairs]
    if not matches:
        return []
    more = f", and {len(matches) - _MOST_MATCHES} more" if len(matches) > _MOST_MATCHES else ""
    return [f"tensors have numbers of their own, as in nvFuser's output: {', '.join(matches[:_MOST_MATCHES])}{more}"]


def entry_for(tensor: str, by_tensor: Mapping[str, str]) -> str:
    """Return what a mapping has for a tensor, or for the one that it derives from, or an empty text.

    Tensors that passes and the segmenter derive from another are named after it, such as ``T2_lower``.
    """
    while tensor not in by_tensor and "_" in tensor:
        tensor = tensor.rpartition("_")[0]
    return by_tensor.get(tensor, "")


def derived_name(tensor: str, called: Mapping[str, str]) -> str:
    """Return the user's name of a tensor, or for one that derives from a named one, this name with its suffix.

    The parts of a composite op, such as ``T2_total`` and ``T2_deviation`` of a mean, have different names.
    """
    named = tensor
    while named not in called and "_" in named:
        named = named.rpartition("_")[0]
    return called[named] + tensor[len(named) :] if named in called else ""


def name_of(tensor: str, fusion: Fusion, called: Mapping[str, str]) -> str:
    """Return what a tensor is called: the user's name, else that of its op; ``""`` for an input without a name."""
    name = entry_for(tensor, called)
    if name or tensor not in fusion.tensors:
        return name
    maker = fusion.producers.get(fusion.tensors[tensor])
    return "" if maker is None else maker.op.name


def named_text(text: str, called: Mapping[str, str]) -> str:
    """Return a sentence in which each tensor's name follows what the user calls it, ``total T2``."""
    if not called:
        return text
    return _TENSOR.sub(lambda match: full_name(match[0], entry_for(match[0], called)), text)


def named_error(error: InputError, names: Names) -> InputError:
    """Return an error about inputs whose sentence has the user's names of tensors."""
    return type(error)(named_text(str(error), names_by_tensor(names)))


def full_name(tensor: str, name: str) -> str:
    """Return a tensor's name after the user's name for it, if there is one."""
    return f"{name} {tensor}" if name else tensor


def short_name(name: str) -> str:
    """Return a name as pictures have room for it."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
