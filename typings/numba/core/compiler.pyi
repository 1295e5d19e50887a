from typing import Any

from numba.core.compiler_machinery import PassManager

class CompilerBase:
    state: Any
    def define_pipelines(self) -> list[PassManager]: ...

class DefaultPassBuilder:
    @staticmethod
    def define_nopython_pipeline(state: Any, name: str = ...) -> PassManager: ...
