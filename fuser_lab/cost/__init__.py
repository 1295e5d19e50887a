"""The cost of segments, devices, and schedulers' verdicts."""
