"""The cost of segments, the devices, and schedulers' answers."""
