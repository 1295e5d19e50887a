"""Live views of fuser_lab for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuser_lab_widgets.compiled import CompiledExplorer
    from fuser_lab_widgets.explorer import Explorer
    from fuser_lab_widgets.model import ModelExplorer

__all__ = ["CompiledExplorer", "Explorer", "ModelExplorer"]


def __getattr__(name: str) -> object:
    """Return a view, loading anywidget only now, because the assets can be used without it."""
    if name == "Explorer":
        from fuser_lab_widgets.explorer import Explorer

        return Explorer
    if name == "CompiledExplorer":
        from fuser_lab_widgets.compiled import CompiledExplorer

        return CompiledExplorer
    if name == "ModelExplorer":
        from fuser_lab_widgets.model import ModelExplorer

        return ModelExplorer
    raise AttributeError(f"module 'fuser_lab_widgets' has no attribute {name!r}")
