"""The commands ``lock``, ``check`` and ``bisect``; a child process imports the user's file."""

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fuser_lab.arguments import brief, short_text
from fuser_lab.cli.user_file import INPUTS_HELP, JoinedArguments, UserFunction, load_function, place_of
from fuser_lab.contracts.by_segmenter import STRATEGIES
from fuser_lab.contracts.call import Call
from fuser_lab.contracts.comparison import REGRESSED, Comparison, compare_partitions
from fuser_lab.contracts.compiled import COMPILERS, compile_call
from fuser_lab.contracts.locks import Lock, git, lock_of, lock_text, printable, revision_of
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, parse_json, record_of
from fuser_lab.report.save import write_file

SKIP: Final = 125  # the exit status that tells `git bisect run` that a commit cannot be tested
_LIBRARIES: Final = {"inductor": "torch", "xla": "jax"}  # whose tensors compilers take; others take several
_FIRST_BAD: Final = re.compile(r"^([0-9a-f]{7,64}) is the first (?:bad|new) commit", re.MULTILINE)
_SIMPLE: Final = re.compile(r"[a-z]+\d*\[[\d,]*\]")  # a described input that --inputs accepts


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What the child process does: the function of a file, and how it is compiled."""

    function: UserFunction
    compiler: str
    options: dict[str, Any] = field(default_factory=dict)


def lock_function(function: UserFunction, compiler: str, options: dict[str, Any]) -> Lock:
    """Return the lock of a function of a file, which a child process imports.

    Raises
    ------
    InputError
        If the process ends without one; its message, on stderr, says why.
    """
    request = _Request(function=function, compiler=compiler, options=options)
    child = subprocess.run(
        [sys.executable, "-m", "fuser_lab.contracts.commands"], input=json_text(asdict(request)), text=True,
        check=False, capture_output=True,
    )
    if child.returncode:
        lines = child.stderr.strip().splitlines()
        why = lines[-1].removeprefix("fuser_lab: ") if lines else f"exit status {child.returncode}"
        if child.returncode != 2:
            why = f"the process that imported {function.file} ended without a result ({brief(why)})"
        raise InputError(f"{function.who}: {why.removeprefix(f'{function.who}: ')}")
    try:
        return record_of(Lock, parse_json(child.stdout))
    except UnreadableError as error:
        msg = f"{function.who}: the process that imported {function.file} printed no lock: {error}."
        raise InputError(msg) from None


def main() -> int:
    """Print the lock that a request on stdin asks for, in the child process; return 0, or 2 with a sentence."""
    data = json.loads(sys.stdin.read())
    function = UserFunction(**data["function"])
    printed = sys.stdout
    try:
        with redirect_stdout(sys.stderr):  # stdout has the lock alone
            subject, arguments, keywords = load_function(function)
            made = compile_call(Call(
                who=function.who, function=subject, inputs=tuple(arguments), keywords=keywords,
                compiler=data["compiler"], device=function.target, backward=function.backward, options=data["options"],
            ))
    except FuserLabError as error:
        sys.stderr.write(f"fuser_lab: {' '.join(str(error).split())}\n")
        return 2
    lock = Lock(
        function=f"{Path(function.file).as_posix()}:{function.name}", revision=revision_of(function.file),
        partition=printable(made.partition),
    )
    printed.write(lock_text(lock))
    return 0


# The commands

def lock_command(arguments: argparse.Namespace) -> int:
    """Write the lock of a function of a file."""
    lock = lock_function(_function(arguments, "lock", arguments.place), arguments.compiler, _options(arguments))
    path = write_file("a lock", Path(arguments.output), lock_text(lock))
    print(f"{lock.partition}\nlock: {path}")  # noqa: T201 - a command prints
    return 0


def check_command(arguments: argparse.Namespace) -> int:
    """Compare a lock with another one, or with what a function is compiled to now.

    The exit status is 0 for unchanged and improved, 1 for regressed, and 125 if that cannot be told.
    """
    try:
        comparison = _check(arguments)
    except FuserLabError as error:
        sys.stderr.write(f"fuser_lab: {error}\n")
        return SKIP
    print(json_text(comparison.to_dict(), indent=1) if arguments.json else comparison)  # noqa: T201 - a command prints
    return int(comparison.verdict == REGRESSED)


def _check(arguments: argparse.Namespace) -> Comparison:
    before = lock_of(arguments.lock)
    if place_of(arguments.after) is None:
        return compare_partitions(before.partition, lock_of(arguments.after).partition)
    after = _now(before, _function(arguments, "check", arguments.after), arguments)
    return compare_partitions(before.partition, after.partition)


def _now(before: Lock, function: UserFunction, arguments: argparse.Namespace) -> Lock:
    """Return the lock that a function has now, compiled as that of a lock was."""
    kinds = {graph.kind for graph in before.partition.graphs}
    inputs = before.partition.inputs
    simple = all(_SIMPLE.fullmatch(text) for text in inputs)
    compiler = before.partition.compiler
    made = replace(
        function, backward=function.backward or "backward" in kinds, otherwise=", ".join(inputs) if simple else None,
        library=_LIBRARIES.get(compiler, ""), target=function.target or (
            before.partition.device if compiler in STRATEGIES else None
        ),
    )
    # Options of the lock that are not Inductor's configuration, which the user's file sets.
    texts = [text for text in before.partition.options if not text.startswith("inductor.config.")]
    return lock_function(made, compiler, {**_values(texts), **_options(arguments)})


def bisect_command(arguments: argparse.Namespace) -> int:
    """Print the decision that differs first between two locks, and the commit, if both are of revisions.

    The exit status is 0 if nothing regressed, 1 if a decision or commit is named, and 125 if that cannot be told.
    """
    try:
        old, new = (lock_of(path, "bisect") for path in arguments.between)
        function = _function(arguments, "bisect", arguments.place)
        comparison = compare_partitions(old.partition, new.partition)
        print(_decision_text(comparison))  # noqa: T201 - a command prints
        if comparison.verdict != REGRESSED:
            return 0
        commit = _commit(function, old, new, Path(arguments.between[0]).resolve(), arguments)
    except FuserLabError as error:
        sys.stderr.write(f"fuser_lab: {error}\n")
        return SKIP
    print(commit)  # noqa: T201 - a command prints
    return 1


def _decision_text(comparison: Comparison) -> str:
    if not comparison:
        return "unchanged: the locks have the same kernels"
    cause, decision = next(iter(comparison.changes), None), comparison.decision
    lines = [comparison.verdict]
    if cause is not None:
        lines += ["the culprit:", *(f"  {line}" for line in str(cause).splitlines())]
    if decision is not None and decision is not cause:
        lines += ["the decision that differs first:", *(f"  {line}" for line in str(decision).splitlines())]
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)])


def _commit(function: UserFunction, old: Lock, new: Lock, lock: Path, arguments: argparse.Namespace) -> str:
    """Return a sentence that names the first commit whose kernels are worse than those of a lock."""
    good, bad = old.revision.rstrip("+"), new.revision.rstrip("+")
    if not good or not bad or good == bad:
        return "the commit: none is searched, because the locks are not of two revisions of a git repository"
    folder = Path(function.file).resolve().parent
    top = git("rev-parse", "--show-toplevel", folder=folder)
    hashes = [git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}", folder=folder)
              for commit in (good, bad)]
    if not top or not all(hashes):
        return f"the commit: none is searched, because {function.file} is in no git repository with both revisions"
    inside = Path(function.file).resolve().relative_to(Path(top).resolve())
    command = [sys.executable, "-m", "fuser_lab", "check", str(lock), f"{inside.as_posix()}:{function.name}"]
    for name in ("inputs", "init", "device"):
        if getattr(arguments, name) is not None:
            command += [f"--{name}", getattr(arguments, name)]
    command += [part for option in arguments.option for part in ("--option", option)]
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary) / "tree"
        git("worktree", "add", "--detach", str(tree), hashes[1], folder=Path(top))
        if not tree.is_dir():
            raise InputError(f"bisect: git makes no worktree of {hashes[1][:12]}.")
        try:
            git("bisect", "start", hashes[1], hashes[0], folder=tree)
            said = git("bisect", "run", *command, folder=tree)
            first = _FIRST_BAD.search(said)
            if first is None:
                return "the commit: git bisect names none, because some commits cannot be compiled"
            text = git("show", "--no-patch", "--format=%h %s (%an, %as)", first[1], folder=tree)
            return f"the commit: {text}"
        finally:
            git("bisect", "reset", folder=tree)
            git("worktree", "remove", "--force", str(tree), folder=Path(top))


def _function(arguments: argparse.Namespace, who: str, text: str) -> UserFunction:
    place = place_of(text)
    if place is None:
        raise InputError(f"{who}: the function must be FILE:NAME, as model.py:step, given {short_text(text)}.")
    compiler = getattr(arguments, "compiler", "inductor")
    return UserFunction(
        file=place[0], name=place[1], who=who, inputs=arguments.inputs, init=arguments.init, device=arguments.device,
        backward=getattr(arguments, "backward", False), library=_LIBRARIES.get(compiler, ""),
        target=getattr(arguments, "target", None),
    )


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return _values(arguments.option)


def _values(texts: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InputError(f"--option must be NAME=VALUE, as mode='max-autotune', given {short_text(text)}.")
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options


def add_commands(commands: Any) -> None:
    """Add the parsers of the commands."""
    text = "Write a lock: a text file that lists which ops of a function share a kernel, with one op per line."
    lock = commands.add_parser("lock", help=text, description=text)
    lock.add_argument("place", metavar="FILE:NAME", help="a function or module class of PyTorch or JAX in a file")
    text = "path of the lock; fusion.lock by default"
    lock.add_argument("-o", "--output", default="fusion.lock", metavar="OUT", help=text)
    text = "what decides the cuts: torch.compile (inductor), nvFuser's rules, fuser_lab's search, or jax.jit (xla)"
    lock.add_argument("--compiler", choices=list(COMPILERS), default="inductor", help=text)
    lock.add_argument("--backward", action="store_true", help="also compile the computation of the gradients")
    lock.set_defaults(call=lock_command)
    text = "Compare a lock with the kernels that a function has now, or with a later lock; exit status 1 if worse."
    check = commands.add_parser("check", help=text, description=text)
    check.add_argument("lock", metavar="LOCK", help="a lock that the command lock wrote")
    check.add_argument("after", metavar="FILE:NAME|LOCK", help="the function, or a later lock")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(call=check_command)
    text = "Print the first decision in which two locks differ, and the commit that changed it."
    bisect = commands.add_parser("bisect", help=text, description=text)
    bisect.add_argument("place", metavar="FILE:NAME", help="the function that both locks describe")
    text = "an earlier and a later lock"
    bisect.add_argument("--between", nargs=2, required=True, metavar=("GOOD", "BAD"), help=text)
    bisect.set_defaults(call=bisect_command)
    for command in (lock, check, bisect):
        command.add_argument("--target", help="the device to plan for, such as A100 (nvfuser and fuser_lab)")
        command.add_argument("--inputs", action=JoinedArguments, metavar="ARGUMENTS", help=INPUTS_HELP)
        text = "arguments to create a module with, such as '512, bias=False'; by default those of get_init_inputs()"
        command.add_argument("--init", metavar="ARGUMENTS", help=text)
        command.add_argument("--device", help="PyTorch's device of the function and its inputs")
        text = "an option of the compiler, such as mode='max-autotune'; can be repeated"
        command.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=text)


if __name__ == "__main__":
    sys.exit(main())
