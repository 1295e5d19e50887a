"""Repro scripts of nvFuser: read without executing anything, and written."""

from fuser_lab.definition.repro.reading import read_script

__all__ = ["read_script"]
