"""Colours, patterns and the style sheet shared by every view."""

from typing import Final

# Okabe and Ito's hues, darkened or lightened until white (light) or black (dark) text is legible on them; distinct for
# colour-blind readers too, and always accompanied by a pattern and a number.
HUES_LIGHT: Final = ("#0b6bb0", "#c2500a", "#0a7d5c", "#a84a80", "#8f6a00", "#2a7fb8", "#6d6e00", "#5a4fb5")
HUES_DARK: Final = ("#5fb0ee", "#ff9352", "#3fd0a2", "#ee9fcd", "#f0b93a", "#8fd0fa", "#d4d04e", "#b3a8ff")
PATTERNS: Final = ("solid", "diagonal", "dots", "bars", "cross", "back", "dashes", "grid")

_LIGHT: Final = {
    "paper": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#1d2330",
    "muted": "#59616f",
    "line": "#c9ced8",
    "wire": "#767f8e",
    "node": "#ffffff",
    "accent": "#0b6bb0",
    "good": "#0a7d5c",
    "bad": "#b3261e",
    "focus": "#0b6bb0",
}
_DARK: Final = {
    "paper": "#14171d",
    "panel": "#1c2028",
    "ink": "#e7eaf0",
    "muted": "#a3acba",
    "line": "#3a4150",
    "wire": "#8d97a8",
    "node": "#222732",
    "accent": "#5fb0ee",
    "good": "#3fd0a2",
    "bad": "#ff8a80",
    "focus": "#8fd0fa",
}
# VS Code marks the page by an attribute, older versions only by a class. High contrast is dark unless marked light.
_MARKS_LIGHT: Final = (
    '[data-vscode-theme-kind*="light"],.vscode-light,.vscode-high-contrast-light,[data-jp-theme-light="true"]'
)
_MARKS_DARK: Final = (
    '[data-vscode-theme-kind*="dark"],[data-vscode-theme-kind="vscode-high-contrast"],.vscode-dark,'
    '.vscode-high-contrast:not(.vscode-high-contrast-light),[data-jp-theme-light="false"]'
)
# Backgrounds set by VS Code's themes; the other colours are distinct on any of them.
_HOST: Final = {"paper": "--vscode-editor-background", "panel": "--vscode-sideBar-background"}
DETAIL_SIZE: Final = 11.0  # pixels: the second line and the aside of a box
SANS: Final = '"Inter", "Helvetica Neue", Arial, "Liberation Sans", sans-serif'
MONO: Final = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'


def colour(name: str) -> str:
    """Return the light value of a named colour, for viewers without style sheets."""
    return _LIGHT[name]


def hue(index: int) -> str:
    """Return the light hue of a segment."""
    return HUES_LIGHT[index % len(HUES_LIGHT)]


def look(index: int) -> int:
    """Return the number of a segment's combination of hue and pattern, which repeats only after 64 segments."""
    return index % (len(HUES_LIGHT) * len(PATTERNS))


def pattern(index: int) -> str:
    """Return the pattern of a segment."""
    return PATTERNS[(index + index // len(HUES_LIGHT)) % len(PATTERNS)]


def variables(selector: str) -> str:
    """Return CSS that sets every colour variable on ``selector``, following the notebook's or the system's theme.

    The most reliable sources take precedence: VS Code's and JupyterLab's own marks, then the system preference.
    """
    dark = _declare(_DARK, HUES_DARK)
    marked_light, marked_dark = (f"body:is({marks}) {selector}" for marks in (_MARKS_LIGHT, _MARKS_DARK))
    light = _declare(_LIGHT, HUES_LIGHT)
    return (
        f"{selector}{{{light}}}"
        f"@media (prefers-color-scheme:dark){{{selector}{{{dark}}}}}"
        f"{marked_light}{{{light}}}{marked_dark}{{{dark}}}"
    )


def _declare(colours: dict[str, str], hues: tuple[str, ...]) -> str:
    named = [
        f"--fl-{name}:{f'var({_HOST[name]},{value})' if name in _HOST else value}" for name, value in colours.items()
    ]
    return ";".join((*named, *(f"--fl-h{n}:{value}" for n, value in enumerate(hues))))


def graph_style() -> str:
    """Return the rules of a drawn graph; attributes in the drawing hold the light values as a fallback."""
    hues = "".join(f".fl-h{n}{{--fl-hue:var(--fl-h{n})}}" for n in range(len(HUES_LIGHT)))
    return variables(".fl-svg") + hues + _GRAPH_RULES


def page_style() -> str:
    """Return the rules of static HTML blocks."""
    return variables(".fl-report") + _PAGE_RULES


BODY_RULE: Final = f"body{{font:13px/1.45 {SANS};color:var(--fl-ink);background:var(--fl-paper)}}"
_PAGE_RULES: Final = (
    f".fl-report{{font:13px/1.45 {SANS};color:var(--fl-ink);background:var(--fl-paper);max-width:100%}}"
    ".fl-report .fl-headline{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:baseline;margin:2px 0 8px}"
    ".fl-report .fl-title{font-size:16px;font-weight:700}"
    ".fl-report .fl-pill{border:1px solid var(--fl-line);border-radius:9px;padding:0 8px;font-size:12px}"
    ".fl-report .fl-fact{color:var(--fl-muted)}.fl-report .fl-fact b{color:var(--fl-ink)}"
    ".fl-report .fl-picture{overflow:auto;margin:4px 0 10px}"
    ".fl-report .fl-picture svg{max-width:100%;height:auto}"
    ".fl-report table.fl-table{border-collapse:collapse;margin:4px 0 10px;font-size:12.5px;color:var(--fl-ink)}"
    ".fl-report table.fl-table th,.fl-report table.fl-table td{text-align:left;padding:3px 10px;background:none;"
    "border:0;border-bottom:1px solid var(--fl-line);white-space:nowrap;max-width:36em;overflow:hidden;"
    "text-overflow:ellipsis}"
    ".fl-report table.fl-table th{color:var(--fl-muted);font-weight:600}"
    ".fl-report table.fl-table .fl-num{text-align:right;font-variant-numeric:tabular-nums}"
    ".fl-report table.fl-table .fl-total td{font-weight:700}"
    ".fl-report summary{cursor:pointer}"
    ".fl-report ol.fl-decisions{list-style:none;padding-left:8px;margin:6px 0;max-height:24em;overflow:auto}"
    ".fl-report ul.fl-verdicts{list-style:none;padding-left:16px;margin:4px 0}"
    ".fl-report .fl-good{color:var(--fl-good)}.fl-report .fl-bad{color:var(--fl-bad)}"
    ".fl-report .fl-note{color:var(--fl-muted)}"
    f".fl-report pre{{font-family:{MONO};font-size:12px;background:var(--fl-panel);color:var(--fl-ink);padding:8px;"
    "overflow:auto}"
)
_GRAPH_RULES: Final = (
    f".fl-svg text{{font-family:{SANS}}}"
    f".fl-svg .fl-mono{{font-family:{MONO}}}"
    ".fl-svg .fl-paper{fill:var(--fl-paper)}"
    ".fl-svg .fl-box{fill:var(--fl-hue);stroke:var(--fl-hue)}"
    ".fl-svg .fl-tint{fill:var(--fl-hue)}"
    ".fl-svg .fl-chip{fill:var(--fl-hue)}"
    ".fl-svg .fl-chip-text{fill:var(--fl-paper)}"
    ".fl-svg .fl-name{fill:var(--fl-ink)}"
    ".fl-svg .fl-detail{fill:var(--fl-muted)}"
    ".fl-svg .fl-called{fill:var(--fl-ink)}"
    ".fl-svg .fl-nodes .fl-name{font-weight:600}"
    f".fl-svg .fl-nodes .fl-mono{{font-size:{DETAIL_SIZE}px;font-weight:400}}"
    ".fl-svg .fl-shape{fill:var(--fl-node);stroke:var(--fl-wire);stroke-width:1.4}"
    ".fl-svg .fl-output-node .fl-shape{stroke-width:2}"
    ".fl-svg .fl-replica :is(.fl-shape,.fl-sheet){stroke-dasharray:4 3}.fl-svg .fl-sheet{fill:none}"
    ".fl-svg .fl-inside .fl-wire{stroke-opacity:.75}.fl-svg .fl-inside .fl-tip{fill-opacity:.75}"
    ".fl-svg .fl-op .fl-shape{stroke:var(--fl-hue)}"
    ".fl-svg .fl-sheet{stroke:var(--fl-hue)}"
    ".fl-svg .fl-io .fl-shape{fill:var(--fl-panel);stroke:var(--fl-muted)}"
    ".fl-svg .fl-wire{stroke:var(--fl-wire)}"
    ".fl-svg .fl-tip{fill:var(--fl-wire)}"
    ".fl-svg .fl-inside .fl-wire{stroke:var(--fl-hue)}"
    ".fl-svg .fl-inside .fl-tip{fill:var(--fl-hue)}"
    ".fl-svg .fl-boundary .fl-wire{stroke:var(--fl-ink)}"
    ".fl-svg .fl-boundary .fl-tip{fill:var(--fl-ink)}"
    ".fl-svg .fl-mark{fill:var(--fl-accent);stroke:var(--fl-paper);stroke-width:1.5}"
    ".fl-svg .fl-tag{fill:var(--fl-paper);stroke:var(--fl-line)}"
    ".fl-svg .fl-refused .fl-box{stroke:var(--fl-bad);fill:var(--fl-bad)}"
    ".fl-svg .fl-refused .fl-chip{fill:var(--fl-bad)}"
    ".fl-svg .fl-hit{stroke:transparent}"
    ".fl-svg .fl-ink{stroke:var(--fl-hue)}"
    ".fl-svg .fl-whole .fl-shape{stroke-width:2}"
    ".fl-plot{max-width:100%;height:auto}"
    ".fl-plot .fl-grid{stroke:var(--fl-line);stroke-opacity:.6}.fl-plot .fl-roof{stroke:var(--fl-ink)}"
    ".fl-plot .fl-fall{stroke:var(--fl-wire)}.fl-plot .fl-before{fill:var(--fl-paper);stroke:var(--fl-wire)}"
    ".fl-plot .fl-full{fill:var(--fl-hue);stroke:var(--fl-hue)}"
    ".fl-plot .fl-hollow{fill:var(--fl-paper);stroke:var(--fl-hue)}"
    ".fl-plot .fl-bar-inputs{fill:var(--fl-wire)}.fl-plot .fl-bar-between{fill:var(--fl-accent)}"
    ".fl-plot .fl-yes :is(path,circle){stroke:var(--fl-good)}.fl-plot .fl-yes circle{fill:var(--fl-good)}"
    ".fl-plot .fl-no :is(path,circle){stroke:var(--fl-bad)}.fl-plot .fl-no circle{fill:var(--fl-paper)}"
    ".fl-plot text.fl-bad{fill:var(--fl-bad)}.fl-plot text.fl-good{fill:var(--fl-good)}"
    ".fl-plot text.fl-muted{fill:var(--fl-muted)}"
    ".fl-plot .fl-removed rect{fill:var(--fl-node);stroke:var(--fl-bad)}"
    ".fl-plot .fl-added rect{fill:var(--fl-node);stroke:var(--fl-good)}"
    ".fl-plot .fl-rewritten rect{fill:var(--fl-node);stroke:var(--fl-accent)}"
    ".fl-plot .fl-unchanged rect{fill:var(--fl-node);stroke:var(--fl-line)}"
    ".fl-plot .fl-bar-results{fill:var(--fl-good)}"
)
# Additional rules for the map of a model. More specific than the rules of a region's explorer, whose style sheet may
# come later in the page.
MAP_RULES: Final = (
    ".fl-svg.fl-map .fl-frame{fill:var(--fl-panel);stroke:var(--fl-line);stroke-width:1.2}"
    ".fl-svg.fl-map .fl-frame.fl-odd{fill:var(--fl-paper)}"
    ".fl-svg.fl-map .fl-shape{fill:var(--fl-node);stroke:var(--fl-wire);stroke-width:1.4}"
    ".fl-svg.fl-map .fl-sheet{fill:var(--fl-node);stroke:var(--fl-wire);stroke-width:1.1}"
    ".fl-svg.fl-map .fl-region .fl-shape{stroke:var(--fl-hue)}.fl-svg.fl-map .fl-region .fl-strip{fill:var(--fl-hue)}"
    ".fl-svg.fl-map .fl-torch .fl-shape{fill:var(--fl-panel);stroke:var(--fl-line)}"
    ".fl-svg.fl-map .fl-name{fill:var(--fl-ink);font-weight:600;font-size:13px}"
    f".fl-svg.fl-map .fl-detail{{fill:var(--fl-muted);font-size:{DETAIL_SIZE}px}}"
    ".fl-svg.fl-map .fl-wire{fill:none;stroke:var(--fl-wire)}.fl-svg.fl-map .fl-back{stroke-dasharray:4 4}"
    ".fl-svg.fl-map .fl-tip{fill:var(--fl-wire)}"
    f".fl-svg.fl-map .fl-tag{{fill:var(--fl-muted);font-size:{DETAIL_SIZE}px}}"
    ".fl-svg.fl-map .fl-tag{paint-order:stroke;stroke:var(--fl-paper);stroke-width:3px}"
)
