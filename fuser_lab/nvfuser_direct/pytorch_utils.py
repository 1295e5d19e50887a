"""Small helpers that scripts expect for torch."""

from fuser_lab.bindings.pytorch_utils import *  # noqa: F403 - its names are nvFuser's, in both of its frontends
