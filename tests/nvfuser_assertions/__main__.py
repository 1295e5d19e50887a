"""``python -m tests.nvfuser_assertions``: how many assertions of nvFuser's tests fuser_lab agrees with."""

from tests.nvfuser_assertions.report import report

if __name__ == "__main__":
    print("\n".join(report()))
