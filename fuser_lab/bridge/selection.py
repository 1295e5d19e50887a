"""Selections of ops in captured graphs: by line, module, op, the graph's name of a result, or the user's variable."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import TYPE_CHECKING

from fuser_lab.arguments import listing
from fuser_lab.bridge.annotations import ends_with, names_of_calls
from fuser_lab.bridge.decompositions import is_named
from fuser_lab.bridge.traced import Node, modules_of, origin_of, target_of, variable_of
from fuser_lab.errors import InputError

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph, GraphBreak

ACCEPTED = (
    "a line such as 'model.py:12' or '12', a module's path or the end of one, an op such as 'aten.mm' or 'softmax', "
    "a variable, or several of these separated by spaces, with 'forward', 'graph 1' or 'region 3' among them"
)
_WORD = re.compile(r"(?:graph|region) \d+|notebook cell:\d+|\S+")
_PLACED = re.compile(r"(graph|region) (\d+)")
_LINE = re.compile(r"(?:.*:)?\d+")
_MOST_CLOSE = 4  # names that an error lists

Op = tuple[int, Node]  # the number of its graph, and the node


@dataclass(frozen=True, slots=True)
class Selection:
    """The ops that a text selects, in order; ``by_graph`` groups them by graph."""

    text: str
    ops: tuple[Op, ...]

    @property
    def by_graph(self) -> dict[int, tuple[Node, ...]]:
        """The nodes by the number of their graph."""
        nodes: dict[int, tuple[Node, ...]] = {}
        for number, node in self.ops:
            nodes[number] = (*nodes.get(number, ()), node)
        return nodes


def select_ops(graphs: Sequence["CapturedGraph"], text: str, breaks: Sequence["GraphBreak"] = ()) -> Selection:
    """Return the ops that all words of a text select.

    Raises
    ------
    InputError
        If a word selects nothing or several things, or no op is selected by all words.
    """
    words = _WORD.findall(text)
    if not words:
        msg = f"why: {text!r} selects nothing; it must be {ACCEPTED}."
        raise InputError(msg)
    index = _Index(graphs, breaks)
    each = [index.of_word(word) for word in words]
    chosen = set(each[0]).intersection(*each[1:])
    if not chosen:
        counts = listing(f"{word!r} selects {len(ops)}" for word, ops in zip(words, each, strict=True))
        msg = f"why: no op is selected by all words of {text!r}: {counts}."
        raise InputError(msg)
    return Selection(text, tuple(op for op in index.ops if op in chosen))


class _Index:
    """All ops of captured graphs with what selects them."""

    def __init__(self, graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"]) -> None:
        self._graphs = graphs
        ends = listing(dict.fromkeys(graph_break.place for graph_break in breaks if graph_break.place))
        # What runs between two graphs has lines that no graph knows.
        self._ends = f"; graphs end at {ends}, and no graph has what runs after an end, before the next" if ends else ""
        self.ops: tuple[Op, ...] = tuple(
            (number, node) for number, graph in enumerate(graphs) for node in graph.traced.nodes
            if node.op == "call_function" and target_of(node) != "getitem"
        )
        self.places = {op: origin_of(op[1]).place for op in self.ops}

    def of_word(self, word: str) -> Sequence[Op]:
        """Return the ops that a word selects, by the first kind of names that has it."""
        if placed := _PLACED.fullmatch(word):
            return self._of_number(placed[1], int(placed[2]))
        if _LINE.fullmatch(word):
            return self._of_line(PurePath(word).name)
        path = tuple(word.split("."))
        kinds: tuple[Callable[[Op], bool], ...] = (
            lambda op: self._graphs[op[0]].kind == word,
            lambda op: any(ends_with(module.split("."), path) for module, _ in modules_of(op[1]) if module),
            lambda op: is_named(target_of(op[1]), frozenset((word,))) or word in names_of_calls(op[1]),
            lambda op: op[1].name == word,
        )
        for kind in kinds:
            if ops := list(filter(kind, self.ops)):
                return ops
        return self._of_variable(word)

    def _of_number(self, kind: str, number: int) -> Sequence[Op]:
        if kind == "graph":
            count = len(self._graphs)
            ops: Iterable[Op] = (op for op in self.ops if op[0] == number)
        else:
            count = max(len(graph.regions) for graph in self._graphs)
            inside = {
                (place, node) for place, graph in enumerate(self._graphs)
                for region in graph.regions if region.index == number for node in region.nodes
            }
            ops = (op for op in self.ops if op in inside)
        if number >= count:
            msg = f"why: there is no {kind} {number}; {kind}s are numbered from 0 to {count - 1}."
            raise InputError(msg)
        return list(ops)

    def _of_line(self, line: str) -> Sequence[Op]:
        """Return the ops of ``model.py:12``, or of ``12`` if only one file has such a line."""
        _, colon, number = line.rpartition(":")
        lines = dict.fromkeys(
            place for place in self.places.values()
            if (place == line if colon else place.rpartition(":")[2] == number and place)
        )
        if len(lines) > 1:
            msg = f"why: {line} is a line of several files; choose from {listing(map(repr, lines))}."
            raise InputError(msg)
        if not lines:
            near = f"lines with ops are {self._near(line)}{self._ends}"
            msg = f"why: no op of the captured graphs comes from {line}; {near}."
            raise InputError(msg)
        return [op for op, place in self.places.items() if place in lines]

    def _near(self, line: str) -> str:
        """Return the lines that are nearest to one, in its file if it has some."""
        file, _, number = line.rpartition(":")
        lines = [place.rpartition(":") for place in dict.fromkeys(self.places.values()) if place]
        same = [entry for entry in lines if entry[0] == file] or lines
        same.sort(key=lambda entry: abs(int(entry[2]) - int(number)))
        return listing(
            "".join(piece) for piece in sorted(same[:_MOST_CLOSE], key=lambda entry: (entry[0], int(entry[2])))
        )

    def _of_variable(self, name: str) -> Sequence[Op]:
        ops = [op for op in self.ops if name in variable_of(origin_of(op[1]).code)]
        lines = dict.fromkeys(self.places[op] for op in ops)
        if len(lines) > 1:
            msg = f"why: {name} is assigned in several lines; choose from {listing(lines)}."
            raise InputError(msg)
        if not ops:
            msg = f"why: no op of the captured graphs is called {name!r}; {self._choices(name)}{self._ends}."
            raise InputError(msg)
        return ops

    def _choices(self, name: str) -> str:
        names: dict[str, None] = {}
        for _, node in self.ops:
            names.update(dict.fromkeys(module for module, _ in modules_of(node) if module))
            names.update(dict.fromkeys(variable_of(origin_of(node).code)))
            names[target_of(node)] = None
            names.update(dict.fromkeys(names_of_calls(node)))
        close = get_close_matches(name, names, _MOST_CLOSE, 0.5)
        if close:
            return f"close names are {', '.join(map(repr, close))}"
        return f"names are {', '.join(map(repr, list(names)[:_MOST_CLOSE]))}, and lines such as {self._near('0')}"


def left_of(graph: "CapturedGraph") -> Mapping[Node, str]:
    """Return why each node that is left to the library is not in a region."""
    return {left.node: left.reason for left in graph.left}
