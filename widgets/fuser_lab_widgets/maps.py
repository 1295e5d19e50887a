"""The common part of maps: a picture with boxes, the panels around it, messages, and the explorer of an open region."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anywidget
import ipywidgets
import traitlets

from fuser_lab.errors import FuserLabError
from fuser_lab.process.forks import renew_in_forks
from fuser_lab.report.module_map import ModuleBox
from fuser_lab_widgets import assets, messages
from fuser_lab_widgets.background import Background
from fuser_lab_widgets.messages import Form, Message

if TYPE_CHECKING:
    from fuser_lab_widgets.explorer import Explorer

# Widths in pixels from which a map and the explorer of a region are beside each other; otherwise it is below the map.
_MAP_WIDTH: Final = "1 1 360px"
_REGION_WIDTH: Final = "2 1 620px"


class Map(anywidget.AnyWidget):
    """A picture of boxes, one of which is selected, with panels around it.

    A subclass draws it, handles the messages that ``FORMS`` describes, and lists in ``workers`` what it computes in the
    background.
    """

    _esm = assets.map_script()
    _css = assets.map_style()
    FORMS: ClassVar[Mapping[str, Form]]

    view = traitlets.Dict().tag(sync=True)

    def __init__(self, workers: Sequence[Background], acts: Mapping[str, Callable[[Message], None]]) -> None:
        super().__init__()
        self._layout = self.layout
        self._workers = tuple(workers)
        self._acts = {
            "box": lambda message: self.press(message["id"]), "find": lambda message: self.find(message["text"]),
            **acts,
        }
        self._selected = self._status = ""
        # A thread that computes something also draws; the last one to draw has all data.
        self._lock = renew_in_forks(threading.RLock())
        self.on_msg(self._receive)

    def press(self, box: str) -> None:
        """Select a box, as a click does."""
        raise NotImplementedError

    def boxes_to_find(self) -> Sequence[ModuleBox]:
        """Return the boxes that a search goes through, drawn or not."""
        raise NotImplementedError

    def reveal(self, box: str) -> None:
        """Select a box, and draw what it is in."""
        raise NotImplementedError

    def draw(self) -> None:
        """Send the picture and its panels."""
        raise NotImplementedError

    def find(self, text: str) -> None:
        """Select the next box whose path, class or ops contain a text."""
        with self._lock:
            ids = [box.id for box in self.boxes_to_find() if box.id and _has(box, text.strip().lower())]
            if not ids:
                self.say(f"No box contains {text.strip()!r}.")
                return
            at = (ids.index(self._selected) + 1) % len(ids) if self._selected in ids else 0
            self._status = f"{at + 1} of {len(ids)} boxes that contain {text.strip()!r}."
            self.reveal(ids[at])

    def say(self, status: str) -> None:
        """Show a sentence in the status line."""
        with self._lock:
            self._status = status
            self.draw()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until what runs in the background has ended."""
        for worker in self._workers:
            worker.wait(timeout)

    def close(self) -> None:
        """Abandon what runs in the background, and free the picture and its layout."""
        for worker in self._workers:
            worker.close()
        super().close()
        self._layout.close()

    def _receive(self, _widget: Any, event: object, _buffers: Any) -> None:
        with self._lock:
            try:
                message = messages.read(event, self.FORMS)
                self._acts[message["type"]](message)
            except FuserLabError as error:
                self.say(str(error))
            except Exception as error:  # noqa: BLE001 - an error in a callback would vanish; the user has to see it
                self.say(f"{type(error).__name__}: {error}")


def _has(box: ModuleBox, text: str) -> bool:
    return text in f"{box.id} {box.name} {box.cls} {' '.join(box.ops)}".lower()


class MapExplorer(ipywidgets.Box):
    """A box with a map, and beside it, or below it where there is no room, the explorer of the region that is open.

    Attributes
    ----------
    map
        The map.
    explorer
        The explorer of the region that is open, or None.
    """

    def __init__(self, shown_map: Map) -> None:
        self.explorer: Explorer | None = None
        self.map: Any = shown_map
        super().__init__([shown_map], layout=ipywidgets.Layout(flex_flow="row wrap", align_items="flex-start"))
        shown_map.layout.flex = _MAP_WIDTH
        self._layout = self.layout

    def close(self) -> None:
        """Free the map, the open explorer, and the box with its layout."""
        for widget in (self.map, self.explorer):
            if widget is not None:
                widget.close()
        super().close()
        self._layout.close()

    def show_explorer(self, explorer: "Explorer") -> None:
        """Show the explorer of a region in place of the one that is open."""
        if self.explorer is not None:
            self.explorer.close()
        explorer.layout.flex = _REGION_WIDTH
        self.explorer = explorer
        self.children = (self.map, explorer)

    def _bundle(self, bundle: Any, text: str, html: str) -> Any:
        """Return the live view, with text and pictures for frontends without widgets."""
        return bundle | {"text/plain": text, "text/html": html} if isinstance(bundle, dict) else bundle
