"""Plans prepared to run on either target: their kernels, storage, runs and measurements."""
