"""Modules of torch that are computed by fusions."""
