from typing import Any

def __getattr__(name: str) -> Any: ...  # types and constants of LLVM IR, passed on to builders that are untyped too
