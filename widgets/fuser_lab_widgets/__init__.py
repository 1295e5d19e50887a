"""Live views of fuser_lab for notebooks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuser_lab_widgets.compiled import CompiledExplorer
    from fuser_lab_widgets.explorer import Explorer
    from fuser_lab_widgets.model import ModelExplorer

__all__ = ["CompiledExplorer", "Explorer", "ModelExplorer"]

_MODULES = {"CompiledExplorer": "compiled", "Explorer": "explorer", "ModelExplorer": "model"}


def __getattr__(name: str) -> object:
    """Return a view, loading anywidget only now, because the assets can be used without it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'fuser_lab_widgets' has no attribute {name!r}")
    view: object = getattr(importlib.import_module(f"fuser_lab_widgets.{_MODULES[name]}"), name)
    return view
