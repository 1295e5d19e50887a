"""Reference evaluation with NumPy: the oracle of all tests."""

from fuser_lab.interpreter.numpy_eval import evaluate, evaluate_expr

__all__ = ["evaluate", "evaluate_expr"]
