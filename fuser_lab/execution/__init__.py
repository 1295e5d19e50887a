"""How definitions and plans run, and whether their results are right: executors, profiles, tolerances."""
