"""The explorer of plans that another compiler made: its kernels, why they are separate, their sources, and edits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.process.forks import renew_in_forks
from fuser_lab.report.module_picture import map_svg
from fuser_lab_widgets import assets, compiled_panels, messages
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.explorer import Explorer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fuser_lab.compilers.plan import CompiledPlan
    from fuser_lab_widgets.messages import Message


class CompiledMap(anywidget.AnyWidget):
    """The kernels of compiled plans: a click on one shows its source, its neighbours, and what can be edited.

    An edit compiles the function again, in the background; its plan is then shown, and the compiler's own plan stays a
    click away.
    """

    _esm = assets.map_script()
    _css = assets.map_style()

    view = traitlets.Dict().tag(sync=True)

    def __init__(self, plans: Sequence[CompiledPlan], open_region: Callable[[CompiledPlan, int], None]) -> None:
        super().__init__()
        self._layout = self.layout
        self._plans, self._edited = tuple(plans), dict[int, "CompiledPlan"]()
        self._open_region = open_region
        self._chosen, self._selected, self._status = 0, "", ""
        self._shows_edited = False
        self._compiler = Background()
        self._lock = renew_in_forks(threading.RLock())  # the thread that compiles also draws
        self.on_msg(self._received)
        self._draw()

    @property
    def plan(self) -> CompiledPlan:
        """The plan on show."""
        plan = self._plans[self._chosen]
        return self._edited.get(self._chosen, plan) if self._shows_edited else plan

    def press(self, box: str) -> None:
        """Select a kernel, as a click does."""
        with self._lock:
            self._selected = "" if box == self._selected else box
            self._draw()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until an edit is compiled."""
        self._compiler.wait(timeout)

    def close(self) -> None:
        """Abandon an edit that is being compiled, and free the picture and its layout."""
        self._compiler.close()
        super().close()
        self._layout.close()

    def say(self, status: str) -> None:
        """Show a sentence in the status line."""
        with self._lock:
            self._status = status
            self._draw()

    def _draw(self) -> None:
        plan = self.plan
        kernel = next((k for k in plan.segments if self._selected == f"kernel {k.index}"), None)
        self._selected = self._selected if kernel is not None else ""
        titles = [f"{number} {each.record.kind}" for number, each in enumerate(self._plans)]
        self.view = {
            "bar": compiled_panels.bar(
                titles, self._chosen, plan, edited=self._shows_edited if self._chosen in self._edited else None,
            ),
            "picture": map_svg([plan.map()], style=False),
            "side": compiled_panels.side(plan, kernel, self._chosen),
            "below": compiled_panels.below(plan),
            "selected": self._selected,
            "status": self._status,
        }

    def _received(self, _widget: Any, event: object, _buffers: Any) -> None:
        acts: dict[str, Callable[[Message], None]] = {
            "box": lambda e: self.press(e["id"]), "out": lambda _: self.press(self._selected), "graph": self._graph,
            "cut": lambda e: self._edit(f"Cut after {e['at']}", lambda plan: plan.cut(e["at"])),
            "glue": lambda e: self._edit(
                f"Glue of kernels {e['n']} and {e['with']}", lambda plan: plan.glue(e["n"], e["with"]),
            ),
            "edited": self._switch, "open": lambda e: self._open_region(self.plan, e["region"]),
        }
        with self._lock:
            try:
                message = messages.read(event, messages.COMPILED)
                acts[message["type"]](message)
            except FuserLabError as error:
                self.say(str(error))
            except Exception as error:  # noqa: BLE001 - an error in a callback would vanish; the user has to see it
                self.say(f"{type(error).__name__}: {error}")

    def _graph(self, event: Message) -> None:
        self._chosen = min(event["n"], len(self._plans) - 1)
        self._shows_edited = self._chosen in self._edited
        self._draw()

    def _switch(self, _: Message) -> None:
        self._shows_edited = not self._shows_edited
        self._draw()

    def _edit(self, title: str, make: Callable[[CompiledPlan], CompiledPlan]) -> None:
        plan, place = self.plan, self._chosen

        def tell(edited: CompiledPlan | None, problem: str) -> None:
            with self._lock:
                if edited is None:
                    self.say(problem)
                    return
                self._edited[place] = edited
                self._shows_edited, self._chosen, self._selected = True, place, ""
                self.say(f"{title}: one call takes {edited.edited}.")

        started = self._compiler.start(lambda: make(plan), tell)
        self.say(f"{title}: the function is compiled again …" if started else "Another edit is being compiled.")


class CompiledExplorer(ipywidgets.VBox):
    """A box with the kernels of compiled plans, and below it the explorer of a region cut as the compiler cuts.

    Attributes
    ----------
    map
        The kernels.
    explorer
        The explorer of the region that is open, or None.
    """

    def __init__(self, plans: Sequence[CompiledPlan], *, strategies: Sequence[str]) -> None:
        self._plans, self._strategies = tuple(plans), tuple(strategies)
        self.explorer: Explorer | None = None
        self.map = CompiledMap(plans, self.show_region)
        super().__init__([self.map])
        self._layout = self.layout

    def close(self) -> None:
        """Free the kernels, the open explorer, and the box with its layout."""
        for widget in (self.map, self.explorer):
            if widget is not None:
                widget.close()
        super().close()
        self._layout.close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return the live view, with the picture and the text of the plans for frontends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if isinstance(bundle, dict):
            bundle |= {
                "text/plain": "\n\n".join(map(str, self._plans)),
                "text/html": "".join(plan._repr_html_() for plan in self._plans),
            }
        return bundle

    def show_region(self, plan: CompiledPlan, region: int) -> None:
        """Show the explorer of a region of a plan, cut as the compiler cuts; the switch offers other strategies.

        Raises
        ------
        InputError
            If the region does not exist.
        UnsupportedError
            If the plan was read without a capture of its graph.
        """
        fusions = plan.fusions
        if not 0 <= region < len(fusions):
            msg = f"show_region: the graph has no region {region}; it has {len(fusions)}."
            raise InputError(msg)
        if self.explorer is not None:
            self.explorer.close()
        fusion = fusions[region]
        title = f"region {region}, cut as {plan.name} does"
        self.explorer = Explorer(fusion, list(fusion.inputs), strategies=self._strategies, title=title)
        self.children = (self.map, self.explorer)
        self.map.say(f"Region {region} is open below.")
