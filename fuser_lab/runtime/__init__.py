"""Compiling, running and timing plans; importing this package loads nothing heavy."""
