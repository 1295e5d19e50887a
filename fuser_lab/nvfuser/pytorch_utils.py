"""Dtypes of torch and of Python numbers as a fusion's."""

from fuser_lab.bindings.pytorch_utils import *  # noqa: F403 - its names are nvFuser's, in both of its frontends
