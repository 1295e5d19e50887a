"""The screenshots of the explorer in the docs: ``python -m tests.browser.scenes`` takes them again.

There are eight scenes, each in a light or a dark theme and 1280 or 1680 pixels wide; ``--all FOLDER`` takes each scene
in both themes and at both widths. Names select scenes. The scene ``time_line`` is measured on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from fuser_lab_widgets import Explorer
from PIL import Image
from playwright.sync_api import sync_playwright

import fuser_lab as fl
from tests.browser.sizes import layers
from tests.browser.stage import Stage
from tests.browser_path import HOW, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images" / "explorer"
HEIGHT: Final = 800  # pixels of the page
COLOURS: Final = 128  # of a picture, which has a few tints and the edges of text
_BOUNDARY: Final = ".fl-edge.fl-boundary .fl-hit"
_INSIDE: Final = ".fl-edge.fl-inside .fl-hit"

Act = Callable[[Stage], None]


def hero(**options: Any) -> Explorer:
    """Return the explorer of a sum of rows that is broadcast and added."""
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float) for _ in range(2))
        total = fd.ops.sum(x, dims=[1])
        column = fd.ops.broadcast(total, is_broadcast_dim=[False, True])
        fd.add_output(fd.ops.add(y, column))
    return fl.explore(fd, [fl.spec((2048, 1024))] * 2, **options)


def example(name: str) -> Explorer:
    """Return the explorer of an example."""
    return fl.explore(*fl.example(name))


def opened(view: str) -> Act:
    """Return the act that opens a view of a tab."""
    def act(stage: Stage) -> None:
        stage.page.evaluate(f"() => document.querySelector('[data-view={view}]').click()")
    return act


def clicked(selector: str, *, selects: bool = False) -> Act:
    """Return the act that clicks the first element, or only selects it, as a click with Shift does."""
    def act(stage: Stage) -> None:
        event = {"shiftKey": selects, "bubbles": True}
        stage.page.locator(selector).first.dispatch_event("click", event)
    return act


def pressed(key: str) -> Act:
    """Return the act that presses a key."""
    return lambda stage: stage.root.press(key)


def timed(stage: Stage) -> None:
    """Run the plan."""
    stage.page.get_by_role("button", name="Run", exact=True).click()
    stage.explorer.wait(120)
    stage.deliver()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is explored, what is done with it, and the theme and width of the picture in the docs."""

    make: Callable[[], Explorer]
    acts: tuple[Act, ...] = ()
    theme: Literal["light", "dark"] = "light"
    width: int = 1280


SCENES: Final = {
    "plan": Scene(make=hero, theme="dark"),
    "decisions": Scene(make=lambda: hero(view="decisions"), acts=(pressed("j"),)),
    "reason": Scene(make=lambda: example("llama3_rope_backward"), acts=(clicked(_BOUNDARY, selects=True),)),
    "time_line": Scene(
        make=lambda: example("layer_norm_backward"), acts=(clicked(_INSIDE), timed, opened("time_line")), width=1680,
    ),
    "edit": Scene(make=lambda: example("llama3_rope_backward"), acts=(clicked(_INSIDE),), theme="dark", width=1680),
    "compare": Scene(make=hero, acts=(clicked(_INSIDE), opened("compare")), theme="dark"),
    "source": Scene(make=hero, acts=(opened("source"),), width=1680),
    "segments": Scene(make=lambda: Explorer(layers(20), []), theme="dark", width=1680),
}


def take(browser: Browser, scene: Scene, path: Path, theme: Literal["light", "dark"], width: int) -> None:
    """Write the picture of a scene."""
    stage = Stage(browser, size=(width, HEIGHT), theme=theme)
    explorer = scene.make()
    stage.show(explorer)
    stage.settle()
    stage.rest()
    for act in scene.acts:
        act(stage)
        stage.rest()
    stage.page.mouse.move(0, 0)
    stage.page.wait_for_timeout(600)  # movements have ended
    stage.root.screenshot(path=path)
    picture = Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)  # a third of the bytes
    picture.save(path, optimize=True)
    stage.close()
    explorer.close()


def main(arguments: list[str]) -> int:
    """Take the screenshots of the docs, or of all themes and widths."""
    browser_path = find_browser()
    if browser_path is None:
        print(HOW)
        return 1
    everything = arguments[:1] == ["--all"]
    folder, names = (Path(arguments[1]), arguments[2:]) if everything else (IMAGES, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        for name, scene in SCENES.items():
            if names and name not in names:
                continue
            themes: tuple[Literal["light", "dark"], ...] = ("light", "dark") if everything else (scene.theme,)
            for theme in themes:
                for width in (1280, 1680) if everything else (scene.width,):
                    path = folder / (f"{name}-{theme}-{width}.png" if everything else f"{name}.png")
                    take(browser, scene, path, theme, width)
                    print(f"{path.name} {path.stat().st_size:,} bytes", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
