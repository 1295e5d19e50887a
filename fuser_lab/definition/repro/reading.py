"""Reading a repro script: which definition, its statements, its inputs."""

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fuser_lab.definition.assumed_sizes import assumed_inputs
from fuser_lab.definition.binding import Described
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.repro.arguments import as_device
from fuser_lab.definition.repro.candidates import (
    DEFINING,
    Candidate,
    choose,
    class_around,
    recorded_parameter,
    records_into,
)
from fuser_lab.definition.repro.source import Script, scripts_in
from fuser_lab.definition.repro.statements import Statements
from fuser_lab.definition.repro.values import (
    Bound,
    Class,
    Function,
    Instance,
    Ops,
    Other,
    Recording,
    Scope,
    Unopened,
    Unread,
    description,
)
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, DefinitionError
from fuser_lab.ir import Fusion, Scalar
from fuser_lab.ir.tensor_names import numbers_notes

Builder = TypeVar("Builder", bound=FusionBuilder)


def read_script(
    text: str, make: Callable[[], Builder], name: str | None = None,
) -> tuple[Builder, list[Described]]:
    """Return the definition in a repro script, and descriptions of its inputs.

    No part of the text is executed: its syntax tree is read through a whitelist.

    Parameters
    ----------
    text
        A script, or a whole issue with a script in a Markdown fence.
    make
        Creates the empty definition to record into.
    name
        Which of several definitions to read: its function, class or variable, or ``"line 12"``.

    Raises
    ------
    ArgumentTypeError
        If the text is not a str.
    DefinitionError
        If a part is outside the whitelist or not a legal definition; the message has the line and the reason.
    UnsupportedError
        If the script uses a feature of nvFuser that is not implemented.
    """
    for argument, value in (("text", text), ("name", name)):
        if not isinstance(value, str) and (argument == "text" or value is not None):
            raise ArgumentTypeError(f"load_repro: {argument} must be a str, given {type(value).__name__}.")
    script, candidate = choose(scripts_in(text), name)
    reader = _Reader(script, candidate, make)
    try:
        return reader.read()
    except RecursionError:
        raise DefinitionError("load_repro: the script is nested too deeply to be read.") from None


# Functions that call each other on the way to a definition.
_MOST_CALLERS = 4
# Setup methods of a test class.
_SET_UPS = ("setUpClass", "setup_class", "setUp", "setup_method")
# Fixtures that use fixtures.
_DEEPEST_FIXTURES = 4


class _Executed(Exception):  # noqa: N818 - not an error: it ends the statement that executes the definition
    pass


class _Reader(Statements):
    """Runs a script's statements, recording its chosen definition.

    Everything after its first execution is skipped, except statements that record into it.
    """

    def __init__(self, script: Script, candidate: Candidate, make: Callable[[], Any]) -> None:
        super().__init__(script)
        self._candidate = candidate
        self._make = make
        self._recorded: Recording | None = None
        self._given: tuple[Any, ast.AST] | None = None
        self._deferred: Function | Class | None = None
        self._functions: dict[tuple[int, str], int] = {}
        self._bound: Bound | None = None
        self._through: Function | None = None
        self._instance_of_chosen: Instance | None = None
        self.notes += [*script.notes, *candidate.notes]

    def read(self) -> tuple[Any, list[Described]]:
        """Return the definition and its inputs."""
        scope = Scope()
        if isinstance(self._candidate.node, ast.Module):
            with self._make() as builder:
                self.open = self._recorded = Recording(builder=builder)
                scope.names["fd"] = self._recorded
                with suppress(_Executed):
                    self.run_each(self._candidate.node.body, scope)
            self.open = None
        else:
            with suppress(_Executed):
                self.run_each(self.script.tree.body, scope)
            self._run_around(scope)
        if self._recorded is None:
            raise self.refusal(self._candidate.line, "the definition that begins here is never reached.")
        builder = self._recorded.builder
        # Raises for a definition without outputs.
        fusion: Fusion = self.guarded(self._candidate.node, lambda: builder.fusion)
        inputs = self._inputs(fusion, scope)
        builder.notes = tuple(dict.fromkeys((*numbers_notes(tuple(self.called)), *self.notes)))
        builder.sources = tuple((name, line) for name, line in self.sources.items() if line)
        builder.names = tuple(self.called)
        return builder, inputs

    def _run_around(self, scope: Scope) -> None:
        """Run a definition that the script does not reach: that of a test function, or one that is only defined."""
        if self._recorded is None and self._given is None:
            for outer in self._ways_to_chosen():
                if self._run_outer(outer, scope):
                    break
        if self._recorded is None and self._deferred is not None:
            self._record(self._deferred, self._deferred.node)

    def _ways_to_chosen(self) -> list[ast.FunctionDef]:
        """Return functions of the script whose bodies lead to the definition, the outermost last."""
        here = self._candidate.node
        inside = self._candidate.around[0] if self._candidate.around else None
        callers = [] if inside is None else [inside]
        start = inside or (here if isinstance(here, ast.FunctionDef) else None)
        functions = [node for node in ast.walk(self.script.tree) if isinstance(node, ast.FunctionDef)]
        while start is not None and len(callers) < _MOST_CALLERS and not start.name.startswith("test"):
            visited = [here, *self._candidate.around, *callers]
            start = next((f for f in functions if f not in visited and _mentions(f, start.name)), None)
            callers += [] if start is None else [start]
        return callers[::-1]

    def _run_outer(self, outer: ast.FunctionDef, scope: Scope) -> bool:
        """Run a function that leads to the definition; return whether it did."""
        inside = Scope(scope)
        is_inside = outer in self._candidate.around
        try:
            inside.names |= self._given_by_script(outer, scope)
            with suppress(_Executed):
                self._set_up(inside.names.get("self"))
                self.run_body(Function(node=outer, scope=scope), inside)
        except DefinitionError:
            if self.open is not None or is_inside:
                raise
            return False
        self._take_named(inside, outer)
        return self._recorded is not None or (self._deferred is not None and self._given is not None)

    def _set_up(self, test: Any) -> None:
        """Run the setup of a test class, as far as it can be read."""
        if not isinstance(test, Instance) or test.of is None:
            return
        for name in _SET_UPS:
            method = test.of.method(name)
            if method is not None:
                with suppress(DefinitionError):
                    self.call_function(method, Function(node=method, scope=test.of.scope), [test], {})

    def made_of(self, of: Class) -> Instance:
        """Return a new instance of a class of the script; the first one of the chosen class is stored."""
        if not of.is_definition:
            return Instance(of=of)
        made = Unopened(of=of)
        if of.node is self._candidate.node and self._instance_of_chosen is None:
            self._instance_of_chosen = made
        return made

    def _given_by_script(self, function: ast.FunctionDef, scope: Scope) -> dict[str, Any]:
        """Return the values of a test's parameters: the first of each parametrize, defaults, or unread ones."""
        signature = function.args
        parameters: dict[str, Any] = {
            p.arg: Unread(what=p.arg, line=function.lineno)
            for p in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
        }
        usual = [*zip(signature.args[len(signature.args) - len(signature.defaults) :], signature.defaults, strict=True),
                 *zip(signature.kwonlyargs, signature.kw_defaults, strict=True)]  # fmt: skip
        for parameter, default in usual:
            if default is not None:
                parameters[parameter.arg] = self.evaluate(default, scope)
        owner = class_around(self.script.tree, function)
        for decorator in (*function.decorator_list, *(() if owner is None else owner.decorator_list)):
            match decorator:
                case ast.Call(func=func, args=[ast.Constant(value=str(names)), values, *_]) if (
                    ast.unparse(func).endswith("mark.parametrize")
                ):
                    parameters |= self._first_of(names, values, scope)
                case ast.Call(func=func, args=[ast.List(elts=names) | ast.Tuple(elts=names), values, *_]) if (
                    ast.unparse(func).endswith("mark.parametrize")
                    and all(isinstance(n, ast.Constant) and isinstance(n.value, str) for n in names)
                ):
                    joined = ",".join(str(n.value) for n in names if isinstance(n, ast.Constant))
                    parameters |= self._first_of(joined, values, scope)
        if owner is not None and "self" in parameters:
            parameters["self"] = Instance(of=Class(node=owner, scope=scope))
        for name, value in parameters.items():
            if isinstance(value, Unread) and name != "request":
                parameters[name] = self._of_fixture(name, value, scope, 0)
        return parameters

    def _of_fixture(self, name: str, usual: Unread, scope: Scope, depth: int) -> Any:
        """Return the value of a script's fixture for the first of its params; ``usual`` if there is none."""
        fixture = scope.value(name)
        if not isinstance(fixture, Function) or depth > _DEEPEST_FIXTURES:
            return usual
        decorators = [each for each in fixture.node.decorator_list if "fixture" in ast.unparse(each)]
        if not decorators:
            return usual
        request = Instance()
        for keyword in decorators[0].keywords if isinstance(decorators[0], ast.Call) else ():
            if keyword.arg == "params":
                request.names["param"] = self._first_of("params", keyword.value, scope).get("params", usual)
        arguments = [
            request if p.arg == "request" else self._of_fixture(p.arg, usual, scope, depth + 1)
            for p in fixture.node.args.args
        ]
        try:
            return self.call_function(fixture.node, fixture, arguments, {})
        except DefinitionError:
            return usual

    def _first_of(self, names: str, values: ast.expr, scope: Scope) -> dict[str, Any]:
        """Return the first values of a parametrize, by the names of the parameters."""
        parameters = [name.strip() for name in names.split(",") if name.strip()]
        first = values.elts[0] if isinstance(values, ast.List | ast.Tuple) and values.elts else None
        is_param = isinstance(first, ast.Call) and ast.unparse(first.func) in {"pytest.param", "param"}
        if is_param and isinstance(first, ast.Call):
            entries = [self.evaluate(each, scope) for each in first.args]
        elif first is not None:
            value = self.evaluate(first, scope)
            entries = list(value) if len(parameters) > 1 and isinstance(value, list | tuple) else [value]
        else:
            value = self.evaluate(values, scope)
            listed = value[0] if isinstance(value, list | tuple) and value else value
            entries = list(listed) if len(parameters) > 1 and isinstance(listed, list | tuple) else [listed]
        if len(entries) != len(parameters):
            return {}
        self.notes.append(f"line {values.lineno}: of several values for {', '.join(parameters)}, the first are used")
        return dict(zip(parameters, entries, strict=True))

    def _record(self, recorder: Function | Class, place: ast.AST) -> Recording:
        with self._make() as builder:
            instance = self._instance_of_chosen
            recording = self.open = self._recorded = Recording(
                builder=builder, of=None if isinstance(recorder, Function) else recorder,
                names={} if instance is None else instance.names,
            )
            method = recorder.method("definition") if isinstance(recorder, Class) else None
            if method is not None:
                self.call_function(place, Function(node=method, scope=recorder.scope), [recording], {})
            elif self._through is not None:
                self.call_function(place, self._through, [recording], {})
            elif isinstance(recorder, Function):
                self.call_function(place, recorder, *self._arguments(recorder, recording))
        self.open = None
        return recording

    def _arguments(self, function: Function, recording: Recording) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a function that records: those of a partial, the definition, or unread ones."""
        if self._bound is not None:
            return [*self._bound.args, recording], dict(self._bound.keywords)
        parameters = function.node.args.args
        place = recorded_parameter(function.node)
        usual = len(parameters) - len(function.node.args.defaults)
        values: list[Any] = [
            recording if i == place else Unread(what=p.arg, line=function.node.lineno)
            for i, p in enumerate(parameters) if i <= place or i < usual
        ]
        return values, {}

    @property
    def _is_read(self) -> bool:
        """Whether the definition and the inputs of its execution are known."""
        is_bare = isinstance(self._candidate.node, ast.Module)
        is_found = self._recorded is not None or self._deferred is not None
        return self._given is not None and is_found and (is_bare or self.open is None)

    def run_each(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Run statements; after the execution of the definition, only those that record into it."""
        executed: _Executed | None = None
        for statement in body:
            if self._is_read and not self._records(statement, scope):
                continue
            try:
                self.run_statement(statement, scope)
            except _Executed as ended:
                executed = ended
        if executed is not None:
            raise executed

    def _records(self, statement: ast.stmt, scope: Scope) -> bool:
        """Whether a statement records into the definition, directly or in a function of the script."""
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        for node in ast.walk(statement):
            self.step(node)
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in DEFINING:
                    if isinstance(scope.value(name), Recording):
                        return True
                case ast.Call(func=ast.Name(id=name), args=[*_, ast.Name(id=argument)]):
                    called = scope.value(name)
                    if (
                        isinstance(called, Function) and isinstance(scope.value(argument), Recording)
                        and called.node.args.args and records_into(called.node, called.node.args.args[-1].arg)
                    ):
                        return True
                case ast.Name(id=name):
                    if isinstance(scope.value(name), Ops):
                        return True
        return False

    def run_if(self, node: ast.If, scope: Scope) -> None:
        """Run the branch that the script's values select, or else the one that holds the definition.

        Of other branches whose condition is unknown, only the execution of the definition is read.
        """
        body, otherwise = node.body, node.orelse
        decided = self.truth(node.test, scope)
        holding = next((part for part in (body, otherwise) if self._holds_definition(part)), None)
        if decided is not None:
            self.run_each(body if decided else otherwise, scope)
            return
        if holding is not None and self.open is None:
            self.notes.append(f"line {node.lineno}: a branch on a value that is not read is taken for its definition")
            self.run_each(holding, scope)
            return
        if self.open is not None:
            raise self.refusal(node, "the branch's condition depends on a value that is not read.")
        note = f"line {node.lineno}: of a branch on a value that is not read, only the definition's inputs are read"
        for part in (body, otherwise):
            try:
                self.run_each(part, Scope(scope))
            except DefinitionError:
                continue
            except _Executed:
                self.notes.append(note)
                raise
        for each in ast.walk(node):
            self.step(each)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                scope.names[each.id] = Unread(what=each.id, line=each.lineno)
        self.notes.append(f"line {node.lineno}: a branch on a value that is not read is skipped")

    def _holds_definition(self, statements: Sequence[ast.stmt]) -> bool:
        return any(each is self._candidate.node for statement in statements for each in ast.walk(statement))

    def define_function(self, node: ast.FunctionDef, scope: Scope) -> None:
        before = self._functions.setdefault((id(scope), node.name), node.lineno)
        # Regions that a program prints have the same name.
        if before != node.lineno and recorded_parameter(node) < 0:
            raise self.refusal(node, f"{node.name} is defined a second time; the first one is on line {before}.")
        function = Function(node=node, scope=scope)
        scope.names[node.name] = function
        if node is self._candidate.node:
            self._deferred = function

    def define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        made = Class(node=node, scope=scope)
        for name in ("schedule", "multidevice_schedule"):
            schedule = made.method(name)
            if schedule is not None and node is self._candidate.node:
                self.scheduled(schedule)
        scope.names[node.name] = made
        if node is self._candidate.node:
            self._deferred = made

    def run_with(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func) == "pytest.raises":
                self.notes.append(f"line {node.lineno}: the script expects an error here, which nvFuser raises")
            if isinstance(item.context_expr, ast.Call) and isinstance(value, str):
                # Of all calls that are read, only torch.device returns a str.
                outside, self.device = self.device, self.guarded(item.context_expr, as_device, value, "torch.device")
                try:
                    self.run_each(node.body, scope)
                finally:
                    self.device = outside
                return
            if isinstance(value, Unopened):
                self._definition(node, item, scope)
                return
            if not isinstance(value, Unread):
                raise self.refusal(item.context_expr, f"a with block over {description(value)} is not read.")
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, scope)
        self.run_each(node.body, scope)

    def _definition(self, node: ast.With, item: ast.withitem, scope: Scope) -> None:
        alias = item.optional_vars if item.optional_vars is not None else item.context_expr
        if node is not self._candidate.node or self._recorded is not None:
            if isinstance(alias, ast.Name):
                scope.names[alias.id] = Other()
            return
        with self._make() as builder:
            self.open = self._recorded = Recording(builder=builder)
            if isinstance(alias, ast.Name):
                scope.names[alias.id] = self._recorded
            self.run_each(node.body, scope)
        self.open = None

    def ran(self, definition: Any, inputs: Any, place: ast.AST) -> None:
        """Store the inputs of the first run of the chosen definition."""
        if isinstance(definition, Bound):
            function = definition.function
            if self._bound is None and isinstance(function, Function) and function.node is self._candidate.node:
                self._bound = definition
            definition = function
        if isinstance(definition, Function):
            # If a block is the definition, the given function is the one that the block calls.
            is_chosen = isinstance(self._candidate.node, ast.With) or definition.node is self._candidate.node
            if not is_chosen and self._calls_chosen(definition.node):
                self._through, is_chosen = self._through or definition, True
        elif isinstance(definition, Unopened) and definition.of is not None:
            is_chosen = definition.of.node is self._candidate.node
        else:
            is_chosen = definition is None or definition is self._recorded or isinstance(definition, Unopened)
        if self._given is None and inputs is not None and is_chosen:
            self._given = (inputs, place)
            if self._is_read:
                raise _Executed

    def _calls_chosen(self, function: ast.FunctionDef) -> bool:
        """Whether a function that is run, for example a lambda, calls the function that is the definition."""
        chosen_node = self._candidate.node
        return isinstance(chosen_node, ast.FunctionDef) and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == chosen_node.name
            for node in ast.walk(function)
        )

    def _inputs(self, fusion: Fusion, scope: Scope) -> list[Described]:
        """Return the inputs of the definition's execution, otherwise assumed ones."""
        if self._given is None and "inputs" not in scope.names:
            for statement in self.script.beside:
                self.run_statement(statement, scope)
        self._take_named(scope, self._candidate.node)
        if self._given is None:
            # The value of a scalar is not assumed: it may decide what is computed.
            assumed = assumed_inputs(fusion) if len(fusion.tensor_inputs) == len(fusion.inputs) else None
            extents = (extent for tensor in fusion.tensor_inputs for extent in tensor.extents)
            if assumed is not None and any(isinstance(extent, Scalar) for extent in extents):
                self.notes.append(assumed[1])
            return [] if assumed is None else list(assumed[0])
        values, place = self._given
        return list(self._flat(values, place))

    def _take_named(self, scope: Scope, place: ast.AST) -> None:
        """Store the list of the name ``inputs`` if no execution has inputs; one tensor of that name is an operand."""
        named = scope.names.get("inputs")
        if self._given is None and named is not None and not isinstance(named, TensorSpec):
            self._given = (named, place)

    def _flat(self, value: Any, place: ast.AST) -> Iterator[Described]:
        match value:
            case TensorSpec() | bool() | int() | float() | complex():
                yield value
            case list() | tuple():
                for entry in value:
                    yield from self._flat(entry, place)
            case Unread():
                why = f"{description(value)} is not read as an input; only tensors created by torch and numbers are."
                raise self.refusal(value.line, why)
            case _:
                why = f"{description(value)} is not an input; only tensors created by torch and numbers are."
                raise self.refusal(place, why)


def _mentions(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function mentions another one in its body, by name or as a method."""
    return any(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(function)
    )
