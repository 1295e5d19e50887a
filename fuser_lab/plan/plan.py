"""Plan: a fusion cut into segments, which can be edited, explained, drawn and run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuser_lab import targets
from fuser_lab.arguments import ANYTHING, FLAG, PATH, list_of, optional, takes
from fuser_lab.errors import SegmentationError
from fuser_lab.plan.accepted import RUNS_ON
from fuser_lab.plan.editable import EditablePlan
from fuser_lab.report import html, save, svg, text
from fuser_lab.report.shown import Shown

if TYPE_CHECKING:
    from fuser_lab.runtime.plan.executor import PreparedPlan


class Plan(Shown, EditablePlan):
    """A fusion cut into segments. Plans are immutable: every edit returns a new plan, and the old one is the undo.

    Plans are equal, and have the same ``hash``, if their fusion, partition, schedulers, order, options and target are
    equal. ``sources`` pairs names of tensors with their lines in the user's code, ``modules`` with the paths of their
    modules (`fuser_lab.from_torch`).
    """

    @takes(
        inputs=list_of(ANYTHING, "a list of arrays and numbers"), out=optional(list_of(ANYTHING, "a list of arrays")),
    )
    def run(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> list[Any]:
        """Return the outputs for inputs of the plan's sizes, as arrays of the inputs' library.

        Parameters
        ----------
        inputs
            One array or number per fusion input.
        out
            Arrays to which the outputs are written instead of new ones.

        Raises
        ------
        InputError
            If the inputs do not fit.
        SegmentationError
            If no scheduler accepts some segment.
        """
        from fuser_lab.runtime.arrays import describe
        from fuser_lab.runtime.binding import device_of

        return self.prepare(device_of([describe(value) for value in inputs])).run(inputs, out)

    @takes(target=RUNS_ON, evaluate_refused=FLAG, allow_fallback=FLAG, keeps_kernels=FLAG)
    def prepare(
        self, target: str = targets.CPU.name, *, evaluate_refused: bool = False, allow_fallback: bool = True,
        keeps_kernels: bool = False,
    ) -> "PreparedPlan":
        """Return the plan compiled for a target; it is compiled once and cached.

        Parameters
        ----------
        target
            ``"cpu"``, ``"cuda"`` for torch's current device, or a device such as ``"cuda:1"``.
        evaluate_refused
            Whether the array library evaluates a segment whose kernel a compiler refuses; otherwise a CompilationError
            names the file with the kernel's source.
        allow_fallback
            Whether the array library evaluates a segment that has no kernel, after a warning; otherwise an error is
            raised.
        keeps_kernels
            Whether the source of kernels is kept on disk for other processes, as machine code is.

        Raises
        ------
        SegmentationError
            If no scheduler accepts some segment.
        """
        from fuser_lab.plan.requests import prepared_once, request_of

        for segment in self.segments:
            if segment.scheduler is None:
                raise SegmentationError(
                    f"the plan cannot run: no scheduler accepts segment {segment.index} "
                    f"({', '.join(e.name for e in segment.exprs)}); {segment.group.answer.text}."
                )
        return prepared_once(
            self._cache, self._lock, self.fusion,
            lambda kind: [replace(request_of(segment, kind), shared=self.shared) for segment in self.segments], target,
            evaluate_refused=evaluate_refused, allow_fallback=allow_fallback, keeps_kernels=keeps_kernels,
        )

    def show(self) -> None:
        """Show the static picture and tables in a notebook, or print the text elsewhere."""
        try:
            from IPython import get_ipython
            from IPython.display import publish_display_data
        except ImportError:
            print(self)  # noqa: T201
            return
        if get_ipython() is None:
            print(self)  # noqa: T201
        else:
            publish_display_data(self._repr_mimebundle_())

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the plan as .svg, .png, .html, .json, .dot, .mmd, .csv, .txt or .py (by extension); return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        UnsupportedError
            If a PNG is requested and no browser is installed to draw it.
        """
        return save.save_plan(self, path)

    def __str__(self) -> str:
        """Return the headline and the segment table."""
        return text.plan_text(self)

    def __repr__(self) -> str:
        """Return the text; a notebook shows the picture."""
        return text.plan_text(self)

    def _repr_html_(self) -> str:
        """Return the picture and the tables."""
        return html.plan_html(self)

    def _picture(self) -> str:
        """Return the picture."""
        return svg.plan_svg(self)
