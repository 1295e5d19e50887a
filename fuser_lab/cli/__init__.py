"""The command line: ``python -m fuser_lab``, and the magics of IPython."""

from fuser_lab.cli.commands import main as main
