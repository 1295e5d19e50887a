"""Schedulers, which decide whether a candidate can be one kernel and choose the loops of a segment."""
