"""The parts of the explorer: each has its state, and the handlers of the events that concern it."""
