"""A function or class in a file of the user's, captured in a child process: ``explain model.py:Class``.

A model has to run to be captured, so its file is imported, in a process that ends afterwards. Scripts for nvFuser are
read, never executed (`fuser_lab.definition.repro`).
"""

import ast
import contextlib
import difflib
import io
import json
import re
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuser_lab.api.explaining import explain
from fuser_lab.api.functions import report
from fuser_lab.api.subject import subject_of
from fuser_lab.bridge.example_inputs import SHORT_DTYPES, example_input, required_names
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
    'arguments, such as "f32[64,512], i64[4,16]<50257, mask=bool[4,16], 0.5": dtype[sizes] is a random tensor '
    "(integers from 0, below 2 or the number after <), everything else a number; by default what get_inputs() in the "
    "file returns"
)
_CRASHED = "the process that imported {file} ended without a result (exit status {status})"


@dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A function or class of a file, and how it is captured.

    ``inputs`` and ``init`` are the texts of arguments: of the call, and of the class.
    """

    file: str
    name: str
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
    command = [sys.executable, "-m", "fuser_lab.cli.user_file"]
    child = subprocess.run(  # noqa: S603 - this interpreter, with this module
        command, input=json_text(asdict(request)), text=True, check=False,
    )
    if child.returncode < 0 or child.returncode > 2:
        msg = f"explain: {_CRASHED.format(file=request.file, status=child.returncode)}."
        raise InputError(msg)
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
    torch = torch_for("explain")
    with _as_errors(request):
        values = runpy.run_path(request.file, run_name=Path(request.file).stem)
    if request.name not in values:
        names = sorted(name for name, value in values.items() if callable(value) and not name.startswith("_"))
        nearest = difflib.get_close_matches(request.name, names, n=1, cutoff=0.0)
        msg = f"explain: {request.file} has no {request.name!r}; it has {', '.join(names[-20:]) or 'no function'}."
        if nearest:
            msg = f"{msg} For example: python -m fuser_lab explain {request.file}:{nearest[0]} {_EXAMPLE}"
        raise InputError(msg)
    model, read = values[request.name], _Reader(torch, request.device)
    options: dict[str, Any] = {"target": request.target, "backward": request.backward}
    with _as_errors(request), torch.device(request.device) if request.device else contextlib.nullcontext():
        if isinstance(model, type):
            arguments, keywords = read.arguments(request.init, "init", values.get("get_init_inputs"))
            _check_count(request, model, arguments, keywords, "init")
            model = model(*arguments, **keywords)
        arguments, keywords = read.arguments(request.inputs, "inputs", values.get("get_inputs"))
        _check_count(request, model, arguments, keywords, "inputs")
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
        msg = f"explain: {request.file} ends the process when it is imported (exit status {ended.code})."
        raise InputError(msg) from None
    except Exception as error:  # noqa: BLE001 - the user's code raises anything
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == request.file]
        where = f"{request.file}:{frames[-1].lineno}" if frames else request.file
        msg = f"explain: {where}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise InputError(msg) from None
    finally:
        sys.path[:] = before


def _check_count(
    request: UserFunction, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], option: str,
) -> None:
    """Raise if required arguments are missing; the message names the command with some."""
    names = [name for name in required_names(function) if name not in keywords]
    if len(arguments) >= len(names):
        return
    example = ", ".join([example_input(function).text if option == "inputs" else "512"] * len(names))
    other = f' --inputs "{request.inputs or "f32[64,512]"}"' if option == "init" else ""
    msg = (
        f"explain: {request.name} takes {', '.join(names)}, given {len(arguments)} of them; for example: "
        f"{_command(request, option, example)}{other}"
    )
    raise InputError(msg)


def _command(request: UserFunction, option: str, example: str) -> str:
    """Return the command with other arguments of the call or of the class."""
    init = f' --init "{request.init}"' if option == "inputs" and request.init else ""
    return f'python -m fuser_lab explain {request.file}:{request.name}{init} --{option} "{example}"'


class _Reader:
    """Arguments from their texts, with tensors on a device."""

    def __init__(self, torch: Any, device: str | None) -> None:
        self._torch, self._device = torch, device
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
        msg = (
            f"explain: --{option} has {text!r}, which is neither a number nor dtype[sizes] with a dtype of "
            f"{', '.join(_DTYPES)}; for example {_EXAMPLE}."
        )
        raise InputError(msg)

    def _tensor(self, dtype: str, sizes: tuple[int, ...], most: int) -> Any:
        torch, kind = self._torch, getattr(self._torch, dtype)
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


if __name__ == "__main__":
    sys.exit(main())
