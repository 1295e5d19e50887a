"""Requested segment boundaries: a ``segment_set`` at the boundaries of modules and of calls.

A pattern names modules by path or class, or calls by torch function or ATen op. Every node that a pattern names has a
*home*: the module, or the one call. A tensor that is read by a node of another home gets a ``segment_set`` in its
region.
"""

import difflib
import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, modules_of
from fuser_lab.errors import ArgumentTypeError, InputError, RegionWarning

Home = tuple[str, str]  # the pattern, and the module or call that it names

_MOST_CLOSE = 3  # paths that an error suggests
_NUMBER = re.compile(r"_\d+$")
_ACCEPTED = "a module's path with * and **, a module class, a torch function or an ATen op, such as 'aten.silu'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """An entry of `annotate`, which names modules by ``path``, modules by class (``cls``), or calls (``call``)."""

    text: str
    path: tuple[str, ...] = ()
    cls: str = ""
    call: str = ""

    def homes(self, node: Node) -> set[Home]:
        """Return the modules of this pattern that a node is in, or the call that it belongs to."""
        if self.call:
            return {(self.text, key) for key, names in _calls(node) if self.call in names}
        return {
            (self.text, path) for path, cls in modules_of(node)
            if path and (cls == self.cls if self.cls else ends_with(path.split("."), self.path))
        }


def patterns_of(caller: str, entries: Any) -> tuple[Pattern, ...]:
    """Return the user's ``annotate`` as patterns.

    Raises
    ------
    ArgumentTypeError
        If it is not a list, or an entry names neither modules nor calls.
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        msg = f"{caller}: annotate must be a list, each entry {_ACCEPTED}; given {short_text(entries)}."
        raise ArgumentTypeError(msg)
    return tuple(_pattern(caller, entry) for entry in entries)


def _pattern(caller: str, entry: Any) -> Pattern:
    torch = torch_for(caller)
    if isinstance(entry, str) and entry.startswith(("aten.", "prims.")):
        return Pattern(text=entry, call=_plain_name(entry.split(".")[1]))
    if isinstance(entry, str) and entry and all(entry.split(".")):
        return Pattern(text=entry, path=tuple(entry.split(".")))
    if isinstance(entry, torch._ops.OpOverload | torch._ops.OpOverloadPacket):  # noqa: SLF001
        return Pattern(text=str(entry), call=_plain_name(str(entry).split(".")[1]))
    if inspect.isclass(entry) and issubclass(entry, torch.nn.Module):
        return Pattern(text=entry.__name__, cls=f"{entry.__module__}.{entry.__qualname__}")
    name = getattr(entry, "__name__", "")
    if callable(entry) and not inspect.isclass(entry) and name.isidentifier():
        return Pattern(text=name, call=_plain_name(name))
    msg = f"{caller}: annotate has {short_text(entry)}; each entry must be {_ACCEPTED}."
    raise ArgumentTypeError(msg)


def _plain_name(op: str) -> str:
    """Return ``layer_norm`` for ``native_layer_norm_backward``: an op and its gradient belong to one call."""
    return re.sub(r"_backward(_data)?$", "", op.lstrip("_").removeprefix("native_"))


def ends_with(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a module's path, or an end of it, matches a pattern with ``*`` and ``**``, both given by components."""
    return any(_fits(path[start:], pattern) for start in range(len(path)))


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_fits(path[start:], pattern[1:]) for start in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])


def _calls(node: Node) -> list[tuple[str, set[str]]]:
    """Return the calls that a node belongs to: an identity of each, and its names."""
    calls: list[tuple[str, set[str]]] = []
    for name, function in node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack") or ():
        names = {_plain_name(_NUMBER.sub("", name)), _plain_name(getattr(function, "__name__", str(function)))}
        calls.append((name, names))
    op = str(node.meta.get("original_aten") or "")
    if "." in op:
        name = _plain_name(op.split(".")[1])
        if calls:
            calls[-1][1].add(name)
        else:
            calls.append((f"{name} {node.meta.get('seq_nr')}", {name}))
    return calls


def names_of_calls(node: Node) -> frozenset[str]:
    """Return the names of the torch functions and ATen ops that a node belongs to, such as ``"layer_norm"``."""
    return frozenset(name for _, names in _calls(node) for name in names)


def homes_of(nodes: Iterable[Node], patterns: Sequence[Pattern]) -> Mapping[Node, frozenset[Home]]:
    """Return the home of each node with a call; there is a boundary between two nodes with different homes."""
    if not patterns:
        return {}
    return {
        node: frozenset(home for pattern in patterns for home in pattern.homes(node))
        for node in nodes if node.op == "call_function"
    }


class Names:
    """The modules and calls of captured graphs, and the patterns that matched some of them.

    ``is_whole`` says that no graph ended early, so a whole function was captured.
    """

    def __init__(self) -> None:
        self.is_whole = True
        self._paths: dict[str, None] = {}
        self._names: dict[str, None] = {}
        self._met: set[str] = set()

    def note(self, nodes: Iterable[Node], patterns: Sequence[Pattern]) -> None:
        """Add the nodes of a graph."""
        listed = [node for node in nodes if node.op == "call_function"]
        self._met.update(pattern for homes in homes_of(listed, patterns).values() for pattern, _ in homes)
        for node in listed:
            for path, cls in modules_of(node):
                self._paths[path] = None
                self._names[cls.rpartition(".")[2]] = None
            self._names.update(dict.fromkeys(name for _, names in _calls(node) for name in names))

    def check(self, caller: str, patterns: Sequence[Pattern], *, is_whole: bool | None = None) -> None:
        """Raise InputError for a pattern without a match, or warn if only a part of a function was captured."""
        message = self.unmet(caller, patterns)
        if message and (self.is_whole if is_whole is None else is_whole):
            raise InputError(message)
        if message:
            warnings.warn(message, RegionWarning, stacklevel=2)

    def unmet(self, caller: str, patterns: Sequence[Pattern]) -> str:
        """Return a sentence about the first pattern without a match, with similar names; empty if all match."""
        pattern = next((candidate for candidate in patterns if candidate.text not in self._met), None)
        if pattern is None:
            return ""
        if pattern.path:
            kind, candidates = "module", list(
                dict.fromkeys(_tail(path, len(pattern.path)) for path in self._paths if path),
            )
        else:
            kind, candidates = "module of this class" if pattern.cls else "call", list(self._names)
        close = difflib.get_close_matches(pattern.text, candidates, _MOST_CLOSE, 0.5) or candidates[:_MOST_CLOSE]
        hint = f"; close names are {', '.join(map(repr, close))}" if close else ""
        return f"{caller}: annotate has {pattern.text!r}, but the captured graphs have no such {kind}{hint}."


def _tail(path: str, length: int) -> str:
    """Return the last parts of a path, numbers as ``*``."""
    return ".".join("*" if part.isdigit() else part for part in path.split(".")[-length:])
