"""IPython magics, added by ``%load_ext fuser_lab``; each is a thin call of a public function."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from fuser_lab.api import functions as api
from fuser_lab.api.exploring import explore
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.lab.ledger import Ledger
from fuser_lab.lab.views import History, history
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import segment
from fuser_lab.report.diff import PlanDiff
from fuser_lab.segmentation import STRATEGIES, SegmenterOptions, SegmentSetMeaning


@magics_class
class FusionMagics(Magics):
    """``%%fusion``, ``%fusion_time``, ``%fusion_diff`` and ``%fusion_history``."""

    @magic_arguments()
    @argument("name", nargs="?", default="fd", help="the variable to set, besides NAME_inputs and NAME_plan")
    @argument("--strategy", default="bottom_up", help=f"one of {', '.join(STRATEGIES)}")
    @argument("--target", help="the device to segment for: A100, H100, H200, B200 or 'this machine'")
    @argument("--segment-set", choices=[m.value for m in SegmentSetMeaning], default="hint", help="meaning of hints")
    @argument("--explore", action="store_true", help="show the explorer instead of the picture")
    @cell_magic("fusion")
    def fusion(self, line: str, cell: str) -> Any:
        """Return the plan of the definition in a cell, which is read as a repro script and never executed."""
        arguments = parse_argstring(self.fusion, line)
        if not arguments.name.isidentifier():
            raise UsageError(f"%%fusion: {arguments.name!r} is not a variable name.")
        try:
            fd, inputs = api.load_repro(cell)
            options = SegmenterOptions(segment_set=arguments.segment_set)
            plan = segment(fd, inputs, strategy=arguments.strategy, target=arguments.target, options=options)
        except FuserLabError as error:
            raise UsageError(str(error)) from None
        self.shell.push({arguments.name: fd, f"{arguments.name}_inputs": inputs, f"{arguments.name}_plan": plan})
        return explore(plan) if arguments.explore else plan

    @magic_arguments()
    @argument("plans", nargs="+", help="variables that hold plans; ratios are relative to the first")
    @argument("--inputs", help="the variable with the inputs (default: random inputs of the plan's sizes)")
    @argument("--seconds", type=float, default=1.0, help="maximum number of seconds per measurement")
    @line_magic("fusion_time")
    def fusion_time(self, line: str) -> api.Timings:
        """Return the measured times of plans."""
        arguments = parse_argstring(self.fusion_time, line)
        plans = [self._plan(name) for name in arguments.plans]
        try:
            inputs = _arrays(plans[0]) if arguments.inputs is None else self._value(arguments.inputs)
            return api.time(plans, inputs, seconds=arguments.seconds)
        except FuserLabError as error:
            raise UsageError(str(error)) from None

    @magic_arguments()
    @argument("before", help="a variable that holds a plan")
    @argument("after", help="a variable that holds a plan")
    @line_magic("fusion_diff")
    def fusion_diff(self, line: str) -> PlanDiff:
        """Return the differences between two plans."""
        arguments = parse_argstring(self.fusion_diff, line)
        try:
            return api.diff(self._plan(arguments.before), self._plan(arguments.after))
        except FuserLabError as error:
            raise UsageError(str(error)) from None

    @magic_arguments()
    @argument("ledger", help="a variable that holds a ledger, or the folder of one")
    @argument("--plan", help="the plan's name; optional if only one was measured")
    @argument("--fusion", help="beginning of the fusion's hash; optional if only one was measured")
    @argument("--segment", type=int, help="number of a segment (default: the whole plan)")
    @line_magic("fusion_history")
    def fusion_history(self, line: str) -> History:
        """Return the times of a plan or a segment over commits."""
        arguments = parse_argstring(self.fusion_history, line)
        held = self.shell.user_ns.get(arguments.ledger)
        if not isinstance(held, Ledger) and not (Path(arguments.ledger) / "ledger.json").exists():
            raise UsageError(f"{arguments.ledger!r} is neither a variable that holds a ledger nor the folder of one.")
        try:
            ledger = held if isinstance(held, Ledger) else Ledger(arguments.ledger)
            return history(ledger, plan=arguments.plan, fusion=arguments.fusion, segment=arguments.segment)
        except FuserLabError as error:
            raise UsageError(str(error)) from None

    def _value(self, name: str) -> Any:
        if name not in self.shell.user_ns:
            raise UsageError(f"there is no variable {name!r}.")
        return self.shell.user_ns[name]

    def _plan(self, name: str) -> Plan:
        value = self._value(name)
        if not isinstance(value, Plan):
            msg = f"{name!r} must hold a plan from fl.segment or %%fusion, but holds a {type(value).__name__}."
            raise UsageError(msg)
        return value


def _arrays(plan: Plan) -> Sequence[Any]:
    return [value.materialize() if isinstance(value, TensorSpec) else value for value in plan.inputs]
