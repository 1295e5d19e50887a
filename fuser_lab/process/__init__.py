"""The process: its garbage collector, what a fork makes new, and the memory of its machine."""
