"""The command line: ``python -m fuser_lab``. Every command is a thin call of a public function."""

import argparse
import errno
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fuser_lab import __version__, examples
from fuser_lab.api.functions import diff, load_repro, report, segment
from fuser_lab.api.functions import example as load_example
from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import short_text
from fuser_lab.cli.user_file import INPUTS_HELP, JoinedArguments, UserFunction, advice_for, explain_file, place_of
from fuser_lab.compilers.nvfuser_dumps import AGREEMENT_COUNTS, load_dumps
from fuser_lab.contracts.commands import SKIP, add_commands
from fuser_lab.cost.device import DEVICES, THIS_CPU, TYPICAL_CPU
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import UnreadableError, text_of
from fuser_lab.ir import Number
from fuser_lab.lab.corpus import corpus
from fuser_lab.plan import Plan
from fuser_lab.pricing.prices import price
from fuser_lab.report.units import plural
from fuser_lab.runtime.gpu.this_gpu import THIS_MACHINE
from fuser_lab.segmentation import STRATEGIES, SegmenterOptions, SegmentSetMeaning

_FEWEST_COMPARED = 2  # plans
_PIPE_CLOSED = 141  # the exit status that a shell reports for a program ended by SIGPIPE
_INTERRUPTED = 130  # the exit status that a shell reports for a program ended by SIGINT
_AGAIN: dict[str | None, bool | str] = {None: False, "all": True, "failed": "failed"}
_OF_MODELS = ("inputs", "init", "device", "backward", "measure", "output")  # options of explain FILE:NAME
_EXPLAIN = (
    "Explain a repro script: print why its segments are separate. The script is read and never executed. Or explain a "
    "PyTorch model (FILE:NAME): print what each of its regions and ops costs, and write a report. To capture the "
    "model, its file is imported in a child process and the model is called."
)
_COMMAND = "Show how nvFuser cuts a fusion into segments, and why."
_SCRIPT = "a repro script, or a file that contains one, such as an issue; - for stdin"
_NAME = "name of the definition's function, class or variable, if the script has several definitions"
_STRATEGY = f"one of {', '.join(STRATEGIES)}; bottom_up by default"
_TARGETS = (*(device.name for device in DEVICES), THIS_MACHINE, THIS_CPU, TYPICAL_CPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleReport:
    """One example, segmented and run at its small size on the CPU.

    ``max_error`` is the largest ``|got - reference| / (atol + rtol |reference|)``: below 1 is correct. ``seconds`` is
    the time from definition to checked result, compilation included.
    """

    name: str
    segments: int
    schedulers: list[str]
    max_error: float
    seconds: float


def run_example(name: str) -> ExampleReport:
    """Return the report of one example."""
    start = time.perf_counter()
    chosen = examples.get(name)
    fd, inputs = load_example(name)
    outputs = fd.execute(inputs)
    plan = fd.plan_for(inputs)
    error = chosen.max_error(inputs, outputs)
    return ExampleReport(
        name=name,
        segments=len(plan.segments),
        schedulers=[s.scheduler.value if s.scheduler else "none" for s in plan.segments],
        max_error=error,
        seconds=time.perf_counter() - start,
    )


def _examples(arguments: argparse.Namespace) -> int:
    chosen = arguments.names or examples.names()
    reports = []
    for name in chosen:
        reports.append(run_example(name))
        if not arguments.json:
            _print_report(reports[-1], first=len(reports) == 1)
    if arguments.json:
        data = {"schema": "fuser_lab.examples", "version": 1, "examples": [asdict(r) for r in reports]}
        print(json_text(data, indent=1))
    return 0 if all(r.max_error < 1 for r in reports) else 1


def _print_report(report: ExampleReport, *, first: bool) -> None:
    if first:
        print(f"{'example':<24} {'segments':>8} {'error/tol':>9} {'seconds':>8}  schedulers")
    line = f"{report.name:<24} {report.segments:>8} {report.max_error:>9.3f} {report.seconds:>8.2f}  "
    print(line + ", ".join(report.schedulers), flush=True)


def _ops(arguments: argparse.Namespace) -> int:
    from fuser_lab.report import op_page

    if arguments.json:
        print(json_text(op_page.op_data(), indent=1))
    else:
        print(op_page.op_text(op_page.op_rows()))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from fuser_lab.report.explain import explain_data, explain_text

    place = place_of(arguments.file)
    if place is not None:
        return explain_file(UserFunction(
            file=place[0], name=place[1], inputs=arguments.inputs, init=arguments.init,
            device=arguments.device, backward=arguments.backward, measure=arguments.measure,
            target=arguments.target, output=arguments.output or "report.html", as_json=arguments.json,
        ))
    option = next((name for name in _OF_MODELS if getattr(arguments, name) not in {None, False}), None)
    if option is not None:
        msg = f"explain: --{option} is an option of FILE:NAME, a function or class in a file, given FILE alone."
        raise InputError(msg)
    fd, inputs = _script(arguments.file, arguments.name)
    options = replace(_options(arguments), search_states=arguments.states, search_seconds=arguments.seconds)
    plan = segment(fd, inputs, strategy=arguments.strategy, target=arguments.target, options=options)
    if arguments.json:
        print(json_text(explain_data(plan, certificate=arguments.certificate), indent=1))
    else:
        print(explain_text(plan, log=arguments.log, certificate=arguments.certificate))
    return 0 if all(s.scheduler for s in plan.segments) else 1


def _price(arguments: argparse.Namespace) -> int:
    """Print what each rule costs in a script's fusion, or over the corpus."""
    if (arguments.file is None) == (arguments.corpus is None):
        raise InputError("price: give either FILE or --corpus, not both or neither.")
    fd: object
    inputs: list[TensorSpec | Number] | None
    if arguments.corpus is not None:
        fd, inputs = corpus(arguments.corpus), None
    else:
        fd, inputs = _script(arguments.file, arguments.name)
    prices = price(fd, inputs, measure=arguments.measure, strategy=arguments.strategy, target=arguments.target)
    if arguments.issue is not None:
        print(prices.issue(arguments.issue))
    elif arguments.json:
        print(json_text(prices.to_dict(), indent=1))
    else:
        print(prices)
    return 0


def _fit(arguments: argparse.Namespace) -> int:
    """Measure this CPU, store its rates, and print how well they predict."""
    from fuser_lab.lab.calibration import fit_this_cpu
    from fuser_lab.runtime.cpu.this_cpu import rates_file
    from fuser_lab.runtime.processors import processor_name

    fit = fit_this_cpu(arguments.seconds)
    if arguments.json:
        print(json_text({"schema": "fuser_lab.fit", "version": 1, "device": THIS_CPU, **asdict(fit)}, indent=1))
    else:
        print(f"{processor_name()}\n{fit}\n\nPlans with target={THIS_CPU!r} are predicted by these rates.")
    print(rates_file(), file=sys.stderr)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    title = arguments.title or Path(arguments.file).stem
    path = report(plans, arguments.output, title=title)
    if arguments.json:
        data = {"schema": "fuser_lab.report", "version": 1, "path": str(path), "plans": [p.name for p in plans]}
        print(json_text(data, indent=1))
    else:
        print(path)
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    if len(plans) < _FEWEST_COMPARED:
        msg = f"diff: --strategies must name two strategies or more, given {', '.join(arguments.strategies)}."
        raise InputError(msg)
    differences = diff(*plans)
    print(json_text(differences.to_dict(), indent=1) if arguments.json else differences)
    return 0


def _agree(arguments: argparse.Namespace) -> int:
    """Compare nvFuser's plans in dumps with ours: one line per dump, then the totals."""
    rows: list[dict[str, object]] = []
    unread = 0
    for source in arguments.files:
        file = printable(source)
        try:
            agreements = [(dump, dump.agreement()) for dump in load_dumps(_read(source), target=arguments.target)]
        except FuserLabError as error:
            unread += 1
            rows.append({"file": file, "error": str(error)})
            if not arguments.json:
                print(str(error) if str(error).startswith(f"{file} ") else f"{file}: {error}", flush=True)
            continue
        for place, (dump, agreement) in enumerate(agreements):
            label = file if len(agreements) == 1 else f"{file}[{place}]"
            rows.append({"file": label, **agreement.to_dict(), "notes": list(dump.notes)})
            if not arguments.json:
                print(f"{label}: {agreement if arguments.long else agreement.line}", flush=True)
    readable = [row for row in rows if "error" not in row]
    agreeing = sum(bool(row["agrees"]) for row in readable)
    totals = {key: sum(int(str(row[key])) for row in readable) for key in AGREEMENT_COUNTS}
    if arguments.json:
        data = {"schema": "fuser_lab.agreement", "version": 1, "dumps": rows, "agreeing": agreeing, "totals": totals}
        print(json_text(data, indent=1))
    else:
        print(
            f"total: {agreeing} of {plural(len(readable), 'dump')} agree; {totals['alike']} of "
            f"{plural(totals['nvfuser'], 'segment')} alike, {totals['scheduled_alike']} with the same scheduler; "
            f"{totals['pairs_alike']} of {plural(totals['pairs'], 'edge')} alike"
            + (f"; {plural(unread, 'file')} not read" if unread else ""),
        )
    return 2 if unread else 0 if agreeing == len(readable) else 1


def _retime(arguments: argparse.Namespace) -> int:
    """Return 0 if a row measured again is below a time, 1 if not, 125 if it cannot be measured: ``git bisect skip``."""
    from fuser_lab.lab.retime import retime

    try:
        retimed = retime(arguments.ledger, arguments.row)
    except FuserLabError as error:
        print(f"fuser_lab: {printable(str(error))}", file=sys.stderr)
        return SKIP
    print(retimed)
    return SKIP if math.isnan(retimed.now) else int(retimed.now >= arguments.below)


def _sweep(arguments: argparse.Namespace) -> int:
    """Run the tasks of a sweep that its ledger does not have yet."""
    from fuser_lab.lab.ledger import Ledger
    from fuser_lab.lab.sweep_file import read_sweep

    request = read_sweep(Path(arguments.file))
    folder = arguments.ledger or request.ledger or "runs"
    if arguments.dry_run:
        for task in request.sweep.tasks:
            print(task)
        return 0
    with Ledger(folder) as ledger:
        try:
            result = request.sweep.run(ledger, arguments.scheduler, again=_AGAIN[arguments.again])
        except KeyboardInterrupt:
            left = len(request.sweep.missing(ledger))
            print(f"stopped; {plural(left, 'task')} left. Run the same command to continue.", file=sys.stderr)
            return _INTERRUPTED
    print(f"{result}\nledger: {printable(folder)}")
    return 1 if result.failures else 0


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    """Return the plans of a script's fusion, one per named strategy."""
    fd, inputs = _script(arguments.file, arguments.name)
    options = _options(arguments)
    if "top_down" not in arguments.strategies:
        options.check_strategy(arguments.strategies[0])
    return [
        segment(fd, inputs, strategy=name, target=arguments.target, options=options.for_strategy(name))
        for name in arguments.strategies
    ]


def _options(arguments: argparse.Namespace) -> SegmenterOptions:
    """Return the segmenter's options from a command's arguments."""
    return SegmenterOptions(
        segment_set=arguments.segment_set,
        whole_fusion=arguments.whole_fusion,
        cut_reshape_inputs=arguments.cut_reshape_inputs,
        cut_resize_inputs=arguments.cut_resize_inputs,
        pieces_by_depth=arguments.pieces_by_depth,
    )


def _strategy(text: str) -> str:
    return _one_of("strategy", text, STRATEGIES)


def _target(text: str) -> str:
    return _one_of("target", text, _TARGETS)


def _strategies(text: str) -> list[str]:
    return [_strategy(name.strip()) for name in text.split(",")]


def _one_of(argument: str, text: str, choices: Sequence[str]) -> str:
    """Return an argument, or raise the parser's error for an unknown one."""
    if text in choices:
        return text
    raise argparse.ArgumentTypeError(f"unknown {argument} {short_text(text)}; choose from {', '.join(choices)}")


def printable(text: str) -> str:
    """Return a user's text so that any stream can write it: a file's name may contain bytes that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _script(file: str, name: str | None) -> tuple[FusionDefinition, list[TensorSpec | Number]]:
    """Return the definition in a script; an error for a file with torch names the command that captures it."""
    if place_of(file) is not None:
        command = f"python -m fuser_lab explain {printable(file)}"
        raise InputError(f"{printable(file)} is a function of a file, which only explain captures: {command}")
    text = _read(file)
    try:
        return load_repro(text, name=name)
    except FuserLabError as error:
        advice = advice_for(file, text)
        if not advice:
            raise
        raise InputError(f"{error} A function or module of torch in this file is captured by: {advice}") from None


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return text_of(Path(file))
    except UnreadableError as error:
        raise InputError(f"{printable(file)} cannot be read: {error}.") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuser_lab", description=_COMMAND)
    parser.add_argument("--version", action="version", version=f"fuser_lab {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "Segment and run the examples of fuser_lab, and check their results (error/tol is below 1)."
    run = _command(commands, "examples", _examples, text)
    run.add_argument("names", nargs="*", metavar="NAME", help="names of examples; by default all")
    run.add_argument("--json", action="store_true", help="print JSON")
    text = "List all ops with their signatures, their dtypes and what computes them."
    _command(commands, "ops", _ops, text).add_argument("--json", action="store_true", help="print JSON")
    text = "Print why the segments of a repro script are separate, or what each region of a PyTorch model costs."
    explain = _command(commands, "explain", _explain, text, description=_EXPLAIN)
    text = f"{_SCRIPT}; or model.py:NAME, a PyTorch function or module class in a file"
    explain.add_argument("file", metavar="FILE", help=text)
    _add_model_options(explain)
    explain.add_argument("--name", help=_NAME)
    explain.add_argument("--strategy", default="bottom_up", type=_strategy, help=_STRATEGY)
    explain.add_argument("--target", type=_target, help=f"the device to plan for: {', '.join(_TARGETS)}")
    _add_switches(explain)
    text = "search for a cheaper plan, and print what it saves and why this plan misses it, or why no plan costs less"
    explain.add_argument("--certificate", action="store_true", help=text)
    text = "limit of the search of --certificate and of the strategies optimal and fastest, in sets of ops"
    explain.add_argument("--states", type=int, default=SegmenterOptions().search_states, help=text)
    text = "limit of the same searches in seconds; none by default"
    explain.add_argument("--seconds", type=float, default=None, help=text)
    form = explain.add_mutually_exclusive_group()
    form.add_argument("--log", action="store_true", help="also print every attempt of the segmenter")
    form.add_argument("--json", action="store_true", help="print the plan, its boundaries and the decision log as JSON")
    text = "Print what each rule of nvFuser costs that refused a merge: the time saved if only this rule did not exist."
    prices = _command(commands, "price", _price, text)
    prices.add_argument("file", nargs="?", metavar="FILE", help=_SCRIPT)
    prices.add_argument("--name", help=_NAME)
    text = "instead of FILE: the corpus of fuser_lab, or its entries whose names match a pattern with * and ?"
    prices.add_argument("--corpus", nargs="?", const="*", metavar="PATTERN", help=text)
    prices.add_argument("--strategy", default="bottom_up", type=_strategy, help=_STRATEGY)
    prices.add_argument("--target", type=_target, help=f"the device to plan for: {', '.join(_TARGETS)}")
    text = "also time the plans with and without each rule on this machine"
    prices.add_argument("--measure", action="store_true", help=text)
    form = prices.add_mutually_exclusive_group()
    form.add_argument("--issue", metavar="RULE", help="print the text of a bug report about a rule, with an example")
    form.add_argument("--json", action="store_true", help="print JSON")
    text = "Fit the model of kernel times to measurements on this CPU, and print how well it predicts other kernels."
    fit = _command(commands, "fit", _fit, text)
    text = "measure the CPU; the result is stored for --target 'this CPU'"
    fit.add_argument("--this-cpu", action="store_true", required=True, help=text)
    fit.add_argument("--seconds", type=float, default=20.0, help="duration of the measurements; 20 by default")
    fit.add_argument("--json", action="store_true", help="print the fitted rates as JSON")
    text = (
        "Compare the plans in nvFuser's dumps (NVFUSER_DUMP=segmented_fusion) with fuser_lab's plans; exit status 0 if "
        "all agree."
    )
    agree = _command(commands, "agree", _agree, text)
    text = "a file that contains a dump, such as a log or an issue; - for stdin"
    agree.add_argument("files", nargs="+", metavar="FILE", help=text)
    agree.add_argument("--target", type=_target, help=f"the device to plan for: {', '.join(_TARGETS)}")
    agree.add_argument("--long", action="store_true", help="also print the differences and their reasons")
    agree.add_argument("--json", action="store_true", help="print JSON")
    text = "Run those measurements of a sweep that are not in its ledger yet; exit status 1 if some fail."
    tasks = _command(commands, "sweep", _sweep, text)
    tasks.add_argument("file", metavar="FILE", help="a TOML file that lists fusions, sizes, strategies and targets")
    text = "folder of the ledger; by default the folder that FILE names, or runs"
    tasks.add_argument("--ledger", metavar="FOLDER", help=text)
    text = "address of a Dask scheduler, such as tcp://host:8786; by default the tasks run in this process"
    tasks.add_argument("--scheduler", metavar="ADDRESS", help=text)
    tasks.add_argument("--again", choices=["all", "failed"], help="repeat all tasks, or only failed tasks")
    tasks.add_argument("--dry-run", action="store_true", help="list the tasks without running them")
    text = "Write the explorer of a repro script's plans as one HTML file, which needs neither Python nor a network."
    page = _command(commands, "report", _report, text, strategies="bottom_up")
    text = "path of the HTML file; report.html by default"
    page.add_argument("-o", "--output", default="report.html", metavar="OUT", help=text)
    page.add_argument("--title", help="title of the page; by default the name of FILE")
    text = "Compare the plans of several strategies for a repro script with the plan of the first strategy."
    compare = _command(commands, "diff", _diff, text, strategies="bottom_up,top_down")
    text = (
        "Measure a row of a ledger again; exit status 0 if its time is below a limit, so that git bisect run can "
        "search for a slower commit."
    )
    again = _command(commands, "retime", _retime, text)
    again.add_argument("ledger", metavar="LEDGER", help="folder of the ledger")
    again.add_argument("row", metavar="ROW", help="id of the row")
    again.add_argument("--below", type=float, required=True, metavar="SECONDS", help="the limit")
    add_commands(commands)
    for command in (page, compare):
        command.add_argument("file", metavar="FILE", help=_SCRIPT)
        command.add_argument("--name", help=_NAME)
        text = f"comma-separated names from {', '.join(STRATEGIES)}; default: %(default)s"
        command.add_argument("--strategies", type=_strategies, metavar="NAMES", help=text)
        command.add_argument("--target", type=_target, help=f"the device to plan for: {', '.join(_TARGETS)}")
        _add_switches(command)
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _command(
    commands: Any, name: str, call: Callable[[argparse.Namespace], int], text: str, *, description: str = "",
    **defaults: str,
) -> argparse.ArgumentParser:
    """Add the parser of a command; its description is the help's text by default."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=description or text)
    command.set_defaults(call=call, **defaults)
    return command


def _add_model_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``explain FILE:NAME``."""
    model = command.add_argument_group("FILE:NAME")
    model.add_argument("--inputs", action=JoinedArguments, metavar="ARGUMENTS", help=INPUTS_HELP)
    text = "arguments to create the module with, such as '512, bias=False'; by default the result of get_init_inputs()"
    model.add_argument("--init", metavar="ARGUMENTS", help=text)
    text = "PyTorch's device of the model and its inputs; on meta, nothing is computed"
    model.add_argument("--device", help=text)
    model.add_argument("--backward", action="store_true", help="also capture the computation of the gradients")
    model.add_argument("--measure", action="store_true", help="also time each region and op")
    text = "path of the report; report.html by default"
    model.add_argument("-o", "--output", metavar="OUT", help=text)


def _add_switches(command: argparse.ArgumentParser) -> None:
    """Add the switches of the segmenter that `_options` reads."""
    meanings = [meaning.value for meaning in SegmentSetMeaning]
    text = "what segment_set does: it separates two segments (hint, cut) or has no effect (ignore); hint by default"
    command.add_argument("--segment-set", choices=meanings, default="hint", help=text)
    text = "do not ask first whether the whole fusion can be one segment"
    command.add_argument("--no-whole-fusion", dest="whole_fusion", action="store_false", help=text)
    text = "top_down: also cut edges into reshapes"
    command.add_argument("--cut-reshape-inputs", action="store_true", help=text)
    text = "top_down: also cut edges into slices, pads and cats"
    command.add_argument("--cut-resize-inputs", action="store_true", help=text)
    text = "top_down: where another path leads around a cut, separate the two sides by depth instead of merging them"
    command.add_argument("--pieces-by-depth", action="store_true", help=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0, 1 for an error, 2 for bad arguments, 141 for a closed pipe."""
    try:
        parser = _parser()
        arguments, excess = parser.parse_known_args(argv)
        if excess:
            advice = '; --inputs takes one string, "f32[8], f32[8]"' if "inputs" in arguments else ""
            parser.error(f"unrecognized arguments: {' '.join(excess)}{advice}")
    except SystemExit as ended:  # wrong arguments, --help or --version
        return int(ended.code or 0)
    try:
        status: int = arguments.call(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest of the output has no reader
        return _PIPE_CLOSED
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO}:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"fuser_lab: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1
    except FuserLabError as error:
        print(f"fuser_lab: {printable(str(error))}", file=sys.stderr)
        return 2
    return status
