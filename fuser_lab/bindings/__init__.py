"""What nvFuser's two Python frontends, `fuser_lab.nvfuser` and `fuser_lab.nvfuser_direct`, have in common."""
