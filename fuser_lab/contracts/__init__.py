"""Fusion contracts: tests that fused ops stay fused, and files that record which ops share a kernel."""
