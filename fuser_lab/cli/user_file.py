"""A function or class in a file of the user's, captured in a child process: ``explain model.py:Class``.

A model has to run to be captured, so its file is imported, in a process that ends afterwards. Scripts for nvFuser are
read, never executed (`fuser_lab.definition.repro`).
"""

import argparse
import ast
import contextlib
import difflib
import io
import json
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes  # noqa: F401 - gives NumPy the dtype bfloat16
import numpy as np

from fuser_lab.api.explaining import explain
from fuser_lab.api.functions import report
from fuser_lab.api.subject import subject_of
from fuser_lab.bridge.example_inputs import SHORT_DTYPES, example_input
from fuser_lab.bridge.input_names import parameters_of
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.step_costs import StepCosts
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.json_text import json_text

_PLACE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][\w.]*)", re.DOTALL)
_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\[(?P<sizes>[\d,\s]*)\](?:<(?P<most>\d+))?")
_KEYWORD = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*=(?P<rest>.*)", re.DOTALL)
_DTYPES = {short: name for name, short in SHORT_DTYPES.items()}
_EXAMPLE = '--inputs "f32[64,512]"'
INPUTS_HELP = (
    'arguments of the call, such as "f32[64,512], i64[4,16]<50257, mask=bool[4,16], 0.5": dtype[sizes] is a random '
    "tensor, and i64[4,16]<50257 has integers from 0 to 50256; by default the result of get_inputs() in the file; "
    "can be repeated"
)
_CRASHED = "the process that imported {file} ended without a result (exit status {status})"


class JoinedArguments(argparse.Action):
    """The values of an option that is given once or several times, separated by commas."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None,
    ) -> None:
        """Add the values to the option's earlier ones."""
        del parser, option
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is None else f"{before}, {values}")


@dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A function or class of a file, and how it is captured.

    ``inputs`` and ``init`` are the texts of arguments: of the call, and of the class; ``otherwise`` is the text of
    inputs for a file without ``get_inputs``. ``who`` is the command, which begins messages, and ``library`` that of the
    arguments; an empty text stands for torch if the file imports it.
    """

    file: str
    name: str
    who: str = "explain"
    library: str = "torch"
    otherwise: str | None = None
    inputs: str | None = None
    init: str | None = None
    device: str | None = None
    backward: bool = False
    measure: bool = False
    target: str | None = None
    output: str = "report.html"
    as_json: bool = False


def place_of(text: str) -> tuple[str, str] | None:
    """Return the file and the name in ``model.py:name``; None for another text."""
    match = _PLACE.fullmatch(text)
    return None if match is None else (match["file"], match["name"])


def advice_for(file: str, text: str) -> str:
    """Return the command that explains the first class or function of a file with torch, or an empty text."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse(text)
        modules = {
            alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import)
            for alias in node.names
        } | {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        defined = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        if modules & {"torch", "jax"} and defined:
            classes = [node for node in defined if isinstance(node, ast.ClassDef)]
            name = (classes or defined)[-1].name
            return f"python -m fuser_lab explain {file}:{name} {_EXAMPLE}"
    return ""


def explain_file(request: UserFunction) -> int:
    """Return the exit status of a child process that imports the file, prints the table and writes the report."""
    # Not with -m: the package has imported this module when it would run as the main module.
    command = [sys.executable, "-c", f"import sys; from {__name__} import main; sys.exit(main())"]
    child = subprocess.run(  # noqa: S603 - this interpreter, with this module
        command, input=json_text(asdict(request)), text=True, check=False,
    )
    if child.returncode < 0 or child.returncode > 2:
        raise InputError(f"explain: {_CRASHED.format(file=request.file, status=child.returncode)}.")
    return child.returncode


# In the child process

def main() -> int:
    """Explain the function whose request is on stdin; return 0, or 2 with a sentence on stderr."""
    request = UserFunction(**json.loads(sys.stdin.read()))
    printed = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout has the table alone, which may be JSON
            costs, path = _explained_here(request)
    except FuserLabError as error:
        sys.stderr.write(f"fuser_lab: {error}\n")
        return 2
    table = {**costs.to_dict(), "report": str(path)}
    printed.write(json_text(table, indent=1) if request.as_json else f"{costs}\nreport: {path}")
    printed.write("\n")
    return 0


def _explained_here(request: UserFunction) -> tuple[StepCosts, Path]:
    model, arguments, keywords = load_function(request)
    options: dict[str, Any] = {"target": request.target, "backward": request.backward}
    try:
        captured = subject_of("explain", model, arguments, {"keywords": keywords, **options}).captured
    except InputError as error:
        backward = " --backward" * ("backward=True" in str(error))
        inputs = request.inputs if backward and request.inputs else example_input(model).text
        msg = f"{error} From a shell, for example: {_command(request, 'inputs', inputs)}{backward}"
        raise InputError(msg) from error
    costs = explain(captured, measure=request.measure)
    assert captured is not None
    assert isinstance(costs, StepCosts)
    return costs, report(captured, path=request.output, times=costs, title=f"{Path(request.file).name}:{request.name}")


def load_function(request: UserFunction) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return a function of a file, which is imported here, and its positional and keyword arguments.

    Raises
    ------
    InputError
        If the file has no such function, raises when it is imported, or the arguments do not suffice.
    """
    torch = torch_for(request.who) if request.library == "torch" else None
    with _as_errors(request):
        values = vars(_import(Path(request.file)))
    if not request.library and "torch" in sys.modules:
        torch = torch_for(request.who)
    if request.name not in values:
        names = sorted(name for name, value in values.items() if callable(value) and not name.startswith("_"))
        nearest = difflib.get_close_matches(request.name, names, n=1, cutoff=0.0)
        choices = ", ".join(names[-20:]) or "no function"
        msg = f"{request.who}: {request.file} has no {request.name!r}; it has {choices}."
        if nearest:
            msg = f"{msg} For example: python -m fuser_lab {request.who} {request.file}:{nearest[0]} {_EXAMPLE}"
        raise InputError(msg)
    model, read = values[request.name], _Reader(torch, request.device, request.who)
    has_device = torch is not None and request.device
    with _as_errors(request), torch.device(request.device) if has_device else contextlib.nullcontext():  # type: ignore[union-attr]
        if isinstance(model, type):
            arguments, keywords = read.arguments(request.init, "init", values.get("get_init_inputs"))
            _check_count(request, model, arguments, keywords, "init")
            model = model(*arguments, **keywords)
        examples = values.get("get_inputs")
        text = request.otherwise if request.inputs is None and not callable(examples) else request.inputs
        arguments, keywords = read.arguments(text, "inputs", examples)
        if callable(model):
            _check_count(request, model, arguments, keywords, "inputs")
    return model, arguments, keywords


def _import(path: Path) -> ModuleType:
    """Return a file as a module that stays imported, because torch imports the modules of functions by name."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem} of {path.parent.name}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102 - the user's file, to be run
    return module


@contextlib.contextmanager
def _as_errors(request: UserFunction) -> Iterator[None]:
    """Raise what the user's code raises as one sentence with the line in the user's file."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(request.file).resolve().parent))
    try:
        yield
    except FuserLabError:
        raise
    except SystemExit as ended:
        msg = f"{request.who}: {request.file} ends the process when it is imported (exit status {ended.code})."
        raise InputError(msg) from None
    except Exception as error:  # noqa: BLE001 - the user's code raises anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == request.file]
        where = f"{request.file}:{frames[-1].lineno}" if frames else request.file
        msg = f"{request.who}: {where}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise InputError(msg) from None
    finally:
        sys.path[:] = before


def _check_count(
    request: UserFunction, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], option: str,
) -> None:
    """Raise if required arguments are missing; the message names the command with some."""
    names = [name for name in parameters_of(function, required=True) if name not in keywords]
    if len(arguments) >= len(names):
        return
    example = ", ".join([example_input(function).text if option == "inputs" else "512"] * len(names))
    other = f' --inputs "{request.inputs or "f32[64,512]"}"' if option == "init" else ""
    raise InputError(
        f"{request.who}: {request.name} takes {', '.join(names)}, given {len(arguments)} of them; for example: "
        f"{_command(request, option, example)}{other}"
    )


def _command(request: UserFunction, option: str, example: str) -> str:
    """Return the command with other arguments of the call or of the class."""
    init = f' --init "{request.init}"' if option == "inputs" and request.init else ""
    return f'python -m fuser_lab {request.who} {request.file}:{request.name}{init} --{option} "{example}"'


class _Reader:
    """Arguments from their texts, with tensors on a device."""

    def __init__(self, torch: Any, device: str | None, who: str) -> None:
        self._torch, self._device, self._who = torch, device, who
        if torch is not None:
            torch.manual_seed(0)

    def arguments(self, text: str | None, option: str, default: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments; without a text, those of a function of the user's file."""
        if text is None:
            return (list(default()) if callable(default) else []), {}
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for part in _parts(text):
            keyword = _KEYWORD.fullmatch(part)
            if keyword is not None:
                keywords[keyword["name"]] = self._value(keyword["rest"].strip(), option)
            else:
                arguments.append(self._value(part, option))
        return arguments, keywords

    def _value(self, text: str, option: str) -> Any:
        match = _TENSOR.fullmatch(text)
        if match is not None and match["dtype"] in _DTYPES:
            sizes = tuple(int(size) for size in match["sizes"].split(",") if size.strip())
            return self._tensor(_DTYPES[match["dtype"]], sizes, int(match["most"] or 2))
        with contextlib.suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
        raise InputError(
            f"{self._who}: --{option} has {text!r}, which is neither a number nor dtype[sizes] with a dtype of "
            f"{', '.join(_DTYPES)}; for example {_EXAMPLE}."
        )

    def _tensor(self, dtype: str, sizes: tuple[int, ...], most: int) -> Any:
        torch = self._torch
        if torch is None:
            draw = np.random.default_rng(0)
            is_whole = dtype.startswith(("int", "uint", "bool"))
            return (draw.integers(0, most, sizes) if is_whole else draw.standard_normal(sizes)).astype(np.dtype(dtype))
        kind = getattr(torch, dtype)
        if kind.is_floating_point or kind.is_complex:
            return torch.randn(sizes, device=self._device, dtype=torch.float32).to(kind)
        return torch.randint(0, most, sizes, device=self._device).to(kind)


def _parts(text: str) -> list[str]:
    """Return a text's parts between commas that are outside brackets."""
    parts, depth, part = [], 0, io.StringIO()
    for letter in text:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(part.getvalue().strip())
            part = io.StringIO()
        else:
            part.write(letter)
    parts.append(part.getvalue().strip())
    return [each for each in parts if each]
