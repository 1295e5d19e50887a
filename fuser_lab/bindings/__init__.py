"""The common parts of nvFuser's two Python frontends, `fuser_lab.nvfuser` and `fuser_lab.nvfuser_direct`."""
