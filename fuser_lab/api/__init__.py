"""The functions and classes of the public API that work on plans, definitions and captured models."""
