"""`explore`: the live view of a fusion, a plan or a captured model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab.arguments import TEXT, brief, optional, takes
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.model_view import headline
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, UnsupportedError
from fuser_lab.execution.runnable import runnable
from fuser_lab.fusion_definition import FusionDefinition
from fuser_lab.host_memory import free_bytes
from fuser_lab.ir import Number
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import definition_of, described_input, flattened, segment

if TYPE_CHECKING:
    from fuser_lab_widgets import Explorer, ModelExplorer

    from fuser_lab.lab.profiling import PlanProfile

_EXPLORED = ("bottom_up", "top_down", "optimal", "unfused")


@takes(title=optional(TEXT))
def explore(
    fd: object,
    inputs: Sequence[Any] | None = None,
    *,
    title: str | None = None,
    profile: "PlanProfile | None" = None,
    **segment_options: Any,
) -> "Explorer | ModelExplorer":
    """Return the live explorer of a fusion, for display in a notebook.

    Parameters
    ----------
    fd
        A definition, a fusion, or a plan to start from; or the result of `from_torch` or `from_jax`, which is shown as
        a map of its modules, with the explorer of the selected region.
    inputs
        As for `segment`. A run creates arrays for abstract inputs, smaller ones if necessary to fit into memory; the
        header shows their sizes. An empty list, which `load_repro` returns for scripts without inputs, stands for
        inputs whose open sizes are all equal. Without inputs, plans cannot be run.
    title
        Title in the header; by default the name of the plan on show.
    profile
        What `fuser_lab.profile` returned for the plan: its lines and sentences are shown beside the source.
    **segment_options
        Passed to `segment`, which cuts a definition.

    Raises
    ------
    ArgumentTypeError
        If there are options but a plan or a captured model is given, which is already segmented; or a profile of a
        model.
    InputError
        If the profile is that of another plan.
    UnsupportedError
        If the notebook packages are not installed.
    """
    try:
        from fuser_lab_widgets import Explorer, ModelExplorer
    except ImportError as error:
        msg = f"the explorer needs the notebook packages: pip install 'fuser_lab[notebook]' ({error})."
        raise UnsupportedError(msg) from None
    if segment_options and isinstance(fd, Captured | Plan):
        subject = "a captured model, which is cut as it is captured" if isinstance(fd, Captured) else "a plan"
        msg = (
            f"explore: {brief(min(segment_options))} is an option of cutting a definition, given {subject}; "
            "give the definition, or the plan that plan.resegmented(...) returns."
        )
        raise ArgumentTypeError(msg)
    if isinstance(fd, Captured):
        if profile is not None:
            msg = "explore: a profile is of one plan, given a captured model; explore the plan that was profiled."
            raise ArgumentTypeError(msg)
        return ModelExplorer(fd, title or headline(fd.graphs, fd.graph_breaks), strategies=_EXPLORED)
    notes: list[str] = []
    flat = None if inputs is None else flattened(inputs)
    if flat is not None and (not flat or any(isinstance(v, TensorSpec) for v in flat)):
        are_abstract = all(isinstance(v, TensorSpec | Number) for v in flat)
        runnable_inputs = runnable(
            definition_of(fd), [described_input(v) for v in flat], free=free_bytes(),
            is_fixed=isinstance(fd, Plan) or not are_abstract,
        )
        notes.append(runnable_inputs.said)
        inputs = list(runnable_inputs.inputs) if are_abstract else flat
        flat = inputs if runnable_inputs.fits else None
    plan = fd if isinstance(fd, Plan) else segment(fd, inputs, **segment_options)
    notes += fd.notes if isinstance(fd, FusionDefinition) else ()
    return Explorer(plan, flat, strategies=_EXPLORED, title=title, notes=notes, profile=profile)
