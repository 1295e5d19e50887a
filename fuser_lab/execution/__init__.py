"""Running definitions and plans, and checking their results: executors, profiles, tolerances."""
