"""Which parts of a script define a fusion, and which of them to read."""

import ast
import re
from bisect import bisect
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fuser_lab.arguments import short_text
from fuser_lab.definition.repro.source import Script
from fuser_lab.errors import DefinitionError

DEFINING = frozenset({"define_tensor", "define_scalar", "define_vector", "add_output", "from_pytorch", "ops", "Ops"})

_REGION = re.compile(r"nvFusion\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A part of a script that defines a fusion: a ``with`` block, a function, a class, or the script itself.

    ``names`` are those by which a user may select it, ``calls`` is the function that a ``with`` block calls, and
    ``around`` are the enclosing functions. ``notes`` say which other definitions were skipped.
    """

    node: ast.With | ast.FunctionDef | ast.ClassDef | ast.Module
    names: tuple[str, ...]
    calls: str | None = None
    around: tuple[ast.FunctionDef, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def line(self) -> int:
        """Line on which it begins."""
        return self.node.body[0].lineno if isinstance(self.node, ast.Module) else self.node.lineno


def choose(scripts: Sequence[Script], name: str | None) -> tuple[Script, Candidate]:
    """Return the one definition, or the one with a name."""
    pairs = [(script, candidate) for script in scripts for candidate in _candidates(script)]
    regions = [region for script in scripts if not pairs for region in _regions(script)]
    if regions:
        raise DefinitionError(
            f"load_repro: the trace calls {regions[0]}, but the text does not define it; "
            f"thunder.last_traces(f)[-1].python_ctx()[{regions[0]!r}].last_used prints its definition."
        )
    if not pairs:
        raise DefinitionError(
            "load_repro: the text defines no fusion; a script has `with FusionDefinition() as fd:` or a function with "
            "the parameter fd, and fd.add_output in it."
        )
    fitting = [pair for pair in pairs if name is None or name in {*pair[1].names, f"line {pair[1].line}"}]
    if name is None:
        fitting = _not_called_by_others(fitting)
    # A function that several `with` blocks call is one definition.
    calling = {id(script): script for script, candidate in fitting if candidate.calls is not None}
    lines = {key: _lines_of_functions(script.tree) for key, script in calling.items()}
    distinct = {
        (
            id(script), _recording(lines.get(id(script), {}), candidate),
        ): (script, candidate) for script, candidate in reversed(fitting)
    }
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    if name is None and len({id(script) for script, _ in fitting}) == 1:
        script, first = fitting[0]
        kind = "region" if _regions(script) else "definition" if _are_of_one_test(fitting) else ""
        named = [other.names[0] for _, other in fitting]
        notes = tuple(
            f"line {other.line}: the {kind} {other.names[0]} is skipped; "
            f"name={other.names[0] if named.count(other.names[0]) == 1 else f'line {other.line}'!r} reads it"
            for _, other in fitting[1:]
        )
        if kind:
            return script, replace(first, notes=notes)
    listed = ", ".join(f"{candidate.names[0]} (line {candidate.line})" for _, candidate in pairs[:20])
    if name is None:
        first = pairs[0][1]
        ways = f"name={first.names[0]!r} or name='line {first.line}'"
        msg = f"load_repro: the text has {len(pairs)} definitions: {listed}; choose one, such as {ways}."
    else:
        several = f"{len(fitting)} definitions" if fitting else "no definition"
        msg = f"load_repro: the text has {several} called {short_text(name)}; it has {listed}."
    raise DefinitionError(msg)


def _lines_of_functions(tree: ast.Module) -> dict[str, list[int]]:
    """Return the lines on which functions begin, by their names, in order."""
    lines_of: dict[str, list[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            lines_of.setdefault(node.name, []).append(node.lineno)
    return {name: sorted(lines) for name, lines in lines_of.items()}


def _recording(functions: dict[str, list[int]], candidate: Candidate) -> int:
    """Return the line that identifies a definition: that of the function that a block calls, or its own first line."""
    lines = functions.get(candidate.calls or "", [])
    place = bisect(lines, candidate.line)
    return lines[place - 1] if place else candidate.line


def _not_called_by_others(
    pairs: list[tuple[Script, Candidate]],
) -> list[tuple[Script, Candidate]]:
    """Return the definitions without functions that others call to record a part; all if none remain."""
    called: set[str] = set()
    for _, candidate in pairs:
        if isinstance(candidate.node, ast.FunctionDef):
            calls = [node.func for node in ast.walk(candidate.node) if isinstance(node, ast.Call)]
            called |= {f.id for f in calls if isinstance(f, ast.Name)} - {candidate.node.name}
            called |= {f.attr for f in calls if isinstance(f, ast.Attribute)} - {candidate.node.name}
    return [pair for pair in pairs
            if not isinstance(pair[1].node, ast.FunctionDef) or pair[1].node.name not in called] or pairs  # fmt: skip


def _are_of_one_test(pairs: list[tuple[Script, Candidate]]) -> bool:
    """Whether definitions are functions inside one function of the script, which runs them in sequence."""
    outer = [candidate.around[0] if candidate.around else None for _, candidate in pairs]
    are_functions = all(isinstance(candidate.node, ast.FunctionDef) for _, candidate in pairs)
    return are_functions and outer[0] is not None and all(each is outer[0] for each in outer)


def _regions(script: Script) -> list[str]:
    """Return the names of the regions that a trace, as Thunder prints it, calls; none if the script is not a trace."""
    calls = (node.func for node in ast.walk(script.tree) if isinstance(node, ast.Call))
    return [f.id for f in calls if isinstance(f, ast.Name) and _REGION.fullmatch(f.id)]


def _candidates(script: Script) -> list[Candidate]:
    tree = script.tree
    every = tuple(ast.walk(tree))
    calls = _names_of(every)
    made = _definition_variables(every, calls)
    blocks = [
        _block(node, calls, made, around)
        for node, around in _statements(tree, ())
        if isinstance(node, ast.With) and any(_opens(item.context_expr, calls, made) for item in node.items)
    ]
    if blocks:
        return blocks
    defined: list[Candidate] = []
    for node, around in _statements(tree, ()):
        if isinstance(node, ast.FunctionDef) and recorded_parameter(node) >= 0:
            names = (node.name, *(function.name for function in around))
            defined.append(Candidate(node=node, names=names, around=around))
        elif isinstance(node, ast.ClassDef):
            methods = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "definition"]
            defined += [Candidate(node=node, names=(node.name,), around=around) for _ in methods]
    if defined:
        return defined
    return [Candidate(node=tree, names=("fd",))] if records_into(tree, "fd") else []


def _names_of(every: Sequence[ast.AST]) -> frozenset[str]:
    """Return the names by which a script calls FusionDefinition."""
    imported = (alias for node in every if isinstance(node, ast.ImportFrom) for alias in node.names)
    return frozenset({"FusionDefinition"} | {a.asname for a in imported if a.name == "FusionDefinition" and a.asname})


def _definition_variables(every: Sequence[ast.AST], calls: frozenset[str]) -> frozenset[str]:
    """Return the variables to which a script assigns a call of FusionDefinition."""
    variables: set[str] = set()
    for node in every:
        match node:
            case ast.Assign(targets=targets, value=ast.Call() as value) if _opens(value, calls):
                variables |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as value) if _opens(value, calls):
                variables.add(name)
    return frozenset(variables)


def _opens(node: ast.expr, calls: frozenset[str], made: frozenset[str] = frozenset()) -> bool:
    """Whether a ``with`` item opens a definition: a call of FusionDefinition, or a variable for one."""
    match node:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in calls
        case ast.Name(id=name):
            return name in made
    return False


def _statements(
    node: ast.AST, around: tuple[ast.FunctionDef, ...],
) -> Iterator[tuple[ast.stmt, tuple[ast.FunctionDef, ...]]]:
    """Yield all statements outside classes and definitions, with their enclosing functions."""
    pending: deque[tuple[ast.AST, tuple[ast.FunctionDef, ...]]] = deque([(node, around)])
    while pending:
        here, functions = pending.popleft()
        inside = (*functions, here) if isinstance(here, ast.FunctionDef) else functions
        for child in getattr(here, "body", []):
            if isinstance(child, ast.stmt):
                yield child, inside
                # Methods of a test are functions; a class with a definition is one itself.
                if not isinstance(child, ast.ClassDef) or not _has_definition(child):
                    pending.append((child, inside))


def _has_definition(node: ast.ClassDef) -> bool:
    return any(isinstance(f, ast.FunctionDef) and f.name in {"definition", "forward"} for f in node.body)


def class_around(tree: ast.Module, function: ast.FunctionDef) -> ast.ClassDef | None:
    """Return the class of which a function is a method."""
    return next((n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and function in n.body), None)


def recorded_parameter(function: ast.FunctionDef) -> int:
    """Return the index of the last parameter that a function records into; -1 if there is none."""
    places = [place for place, p in enumerate(function.args.args) if records_into(function, p.arg)]
    parameters = {p.arg for p in function.args.args}
    inner = [f for f in ast.walk(function) if isinstance(f, ast.FunctionDef) and f is not function]
    hidden = {p.arg for f in inner for p in f.args.args} & parameters
    return next((place for place in reversed(places) if function.args.args[place].arg not in hidden), -1)


def _block(
    node: ast.With, calls: frozenset[str], made: frozenset[str], around: tuple[ast.FunctionDef, ...],
) -> Candidate:
    item = next(item for item in node.items if _opens(item.context_expr, calls, made))
    variable = item.optional_vars if item.optional_vars is not None else item.context_expr
    alias = variable.id if isinstance(variable, ast.Name) else ""
    called = next(
        (
            call.func.id
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            and any(isinstance(arg, ast.Name) and arg.id == alias for arg in call.args)
        ),
        None,
    )
    # Two blocks that call the same function are equal only if they record nothing themselves.
    function = None if records_into(node, alias) else called
    return Candidate(node=node, names=(*([called] if called else []), alias or "with"), calls=function, around=around)


def records_into(node: ast.AST, fd: str) -> bool:
    """Whether statements record into the definition called ``fd``."""
    return any(
        isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name) and use.value.id == fd
        and use.attr in DEFINING
        for use in ast.walk(node)
    )
