"""The explorer of plans that another compiler made: its kernels, why they are separate, their sources, and edits."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fuser_lab.errors import InputError
from fuser_lab.report.module_map import ModuleBox
from fuser_lab.report.module_picture import map_svg
from fuser_lab_widgets import compiled_panels, messages
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.explorer import Explorer
from fuser_lab_widgets.maps import Map, MapExplorer
from fuser_lab_widgets.messages import Form, Message

if TYPE_CHECKING:
    from fuser_lab.compilers.plan import CompiledPlan


class CompiledMap(Map):
    """The kernels of compiled plans: a click on one shows its source, its neighbours, and what can be edited.

    An edit compiles the function again, in the background; its plan is then shown, and the compiler's own plan stays a
    click away.
    """

    FORMS: ClassVar[Mapping[str, Form]] = messages.COMPILED

    def __init__(self, plans: "Sequence[CompiledPlan]", open_region: "Callable[[CompiledPlan, int], None]") -> None:
        self._compiler = Background()
        super().__init__((self._compiler,), {
            "out": lambda _: self.press(self._selected), "graph": self._graph,
            "cut": lambda e: self._edit(f"Cut after {e['at']}", lambda plan: plan.cut(e["at"])),
            "glue": lambda e: self._edit(
                f"Glue of kernels {e['n']} and {e['with']}", lambda plan: plan.glue(e["n"], e["with"]),
            ),
            "edited": self._switch, "open": lambda e: open_region(self.plan, e["region"]),
        })
        self._plans, self._edited = tuple(plans), dict[int, "CompiledPlan"]()
        self._chosen, self._shows_edited = 0, False
        self.draw()

    @property
    def plan(self) -> "CompiledPlan":
        """The plan on show."""
        plan = self._plans[self._chosen]
        return self._edited.get(self._chosen, plan) if self._shows_edited else plan

    def press(self, box: str) -> None:
        """Select a kernel, as a click does."""
        self.reveal("" if box == self._selected else box)

    def boxes_to_find(self) -> list[ModuleBox]:
        """Return the boxes of the kernels."""
        return self.plan.map().each()

    def reveal(self, box: str) -> None:
        """Select a kernel."""
        with self._lock:
            self._selected = box
            self.draw()

    def draw(self) -> None:
        """Send the picture and its panels."""
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

    def _graph(self, event: Message) -> None:
        self._chosen = min(event["n"], len(self._plans) - 1)
        self._shows_edited = self._chosen in self._edited
        self.draw()

    def _switch(self, _: Message) -> None:
        self._shows_edited = not self._shows_edited
        self.draw()

    def _edit(self, title: str, make: "Callable[[CompiledPlan], CompiledPlan]") -> None:
        plan, place = self.plan, self._chosen

        def tell(edited: "CompiledPlan | None", problem: str) -> None:
            with self._lock:
                if edited is None:
                    self.say(problem)
                    return
                self._edited[place] = edited
                self._shows_edited, self._chosen, self._selected = True, place, ""
                self.say(f"{title}: one call takes {edited.edited}.")

        started = self._compiler.start(lambda: make(plan), tell)
        self.say(f"{title}: the function is compiled again …" if started else "Another edit is being compiled.")


class CompiledExplorer(MapExplorer):
    """The kernels of compiled plans, and the explorer of a region cut as the compiler cuts."""

    def __init__(self, plans: "Sequence[CompiledPlan]", *, strategies: Sequence[str]) -> None:
        self._plans, self._strategies = tuple(plans), tuple(strategies)
        super().__init__(CompiledMap(plans, self.show_region))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        text, html = "\n\n".join(map(str, self._plans)), "".join(plan._repr_html_() for plan in self._plans)
        return self._bundle(super()._repr_mimebundle_(**kwargs), text, html)

    def show_region(self, plan: "CompiledPlan", region: int) -> None:
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
            raise InputError(f"show_region: the graph has no region {region}; it has {len(fusions)}.")
        fusion = fusions[region]
        title = f"region {region}, cut as {plan.name} does"
        self.show_explorer(Explorer(fusion, list(fusion.inputs), strategies=self._strategies, title=title))
        self.map.say(f"Region {region} is open.")
