"""Axes, reductions and views of a set of expressions."""
