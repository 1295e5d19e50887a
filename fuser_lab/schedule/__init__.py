"""Schedulers, which decide whether a candidate can be one kernel, and the choice of a segment's loops."""
