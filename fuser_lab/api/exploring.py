"""`explore`: the live view of a fusion, a plan or a captured model."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fuser_lab.api.subject import subject_of
from fuser_lab.arguments import TEXT, optional, takes
from fuser_lab.bridge.model_view import headline
from fuser_lab.compilers.plan import compiled_plans
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, UnsupportedError
from fuser_lab.execution.runnable import runnable
from fuser_lab.ir import Number
from fuser_lab.plan.planning import definition_of, described_input
from fuser_lab.process.host_memory import free_bytes

if TYPE_CHECKING:
    from fuser_lab_widgets import CompiledExplorer, Explorer, ModelExplorer

    from fuser_lab.lab.profiling import PlanProfile

_EXPLORED = ("bottom_up", "top_down", "optimal", "unfused")


@takes(title=optional(TEXT), view=optional(TEXT))
def explore(
    subject: object,
    /,
    *inputs: Any,
    title: str | None = None,
    profile: "PlanProfile | None" = None,
    view: str | None = None,
    **options: Any,
) -> "Explorer | ModelExplorer | CompiledExplorer":
    """Return the live explorer of a model, a fusion or a plan, for display in a notebook.

    Parameters
    ----------
    subject
        A function or module of torch or JAX, which is captured, or a captured model: both are shown as a map of
        modules, with the explorer of the selected region. Or a definition, a fusion, or a plan to start from. Or what
        `from_inductor`, `from_xla` or `load_recorded` returned, or one of its plans: the kernels and the reasons are
        shown, where possible with edits, and the explorer of a region cut as the compiler cuts.
    *inputs
        Arguments of the function; inputs of the fusion as for `segment`, also as one list. A run creates arrays for
        abstract inputs, smaller ones if necessary to fit into memory; the header shows their sizes. An empty list,
        which `load_repro` returns for scripts without inputs, stands for inputs whose open sizes are all equal. Without
        inputs, plans cannot be run.
    title
        Title in the header; by default the name of the plan on show.
    profile
        What `fuser_lab.profile` returned for the plan: its lines and sentences are shown beside the source.
    view
        The view of a plan that is open at first: ``"decisions"``, which steps through them from the first one on,
        ``"time_line"``, ``"source"`` or another one of the explorer's tabs.
    **options
        As for `explain`.

    Raises
    ------
    ArgumentTypeError
        If there are options but a plan or a captured model is given, which is already segmented; or a profile or a
        view of a model.
    InputError
        If the profile is that of another plan.
    UnsupportedError
        If the notebook packages are not installed.
    """
    try:
        from fuser_lab_widgets import CompiledExplorer, Explorer, ModelExplorer
    except ImportError as error:
        msg = f"the explorer needs the notebook packages: pip install 'fuser_lab[notebook]' ({error})."
        raise UnsupportedError(msg) from None
    plans = compiled_plans(subject)
    if plans:
        if view is not None:
            msg = f"explore: view={view!r} is of a plan of fuser_lab, given plans of another compiler; omit view."
            raise ArgumentTypeError(msg)
        return CompiledExplorer(plans, strategies=_EXPLORED)
    chosen = subject_of("explore", subject, inputs, options)
    captured, flat = chosen.captured, chosen.inputs
    if captured is not None:
        if profile is not None or view is not None:
            name = "profile" if profile is not None else "view"
            msg = f"explore: a {name} is of one plan, given a captured model; explore one of its plans."
            raise ArgumentTypeError(msg)
        return ModelExplorer(captured, title or headline(captured.graphs, captured.graph_breaks), strategies=_EXPLORED)
    notes: list[str] = []
    if flat is not None and (not flat or any(isinstance(v, TensorSpec) for v in flat)):
        are_abstract = all(isinstance(v, TensorSpec | Number) for v in flat)
        runnable_inputs = runnable(
            definition_of(chosen.definition), [described_input(v) for v in flat], free=free_bytes(),
            is_fixed=chosen.is_planned or not are_abstract,
        )
        notes.append(runnable_inputs.said)
        chosen = replace(chosen, inputs=list(runnable_inputs.inputs) if are_abstract else flat)
        flat = chosen.inputs if runnable_inputs.fits else None
    notes += getattr(chosen.definition, "notes", ())
    return Explorer(chosen.plans[0], flat, strategies=_EXPLORED, title=title, notes=notes, profile=profile, view=view)
