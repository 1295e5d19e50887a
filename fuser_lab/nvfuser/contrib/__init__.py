"""torch modules that fusions compute."""
