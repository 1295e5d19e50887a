"""Repro scripts of nvFuser: read without executing anything, and written."""

from fuser_lab.definition.repro.reading import read_script
from fuser_lab.definition.repro.writing import script_text

__all__ = ["read_script", "script_text"]
