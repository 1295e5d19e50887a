from typing import Any

class Type:
    name: str
    def __call__(self, *args: Any) -> Any: ...
    def __getitem__(self, item: Any) -> Any: ...

class Array(Type):
    dtype: Type
    ndim: int
    layout: str
    aligned: bool
    mutable: bool
    def __init__(self, dtype: Type, ndim: int, layout: str, readonly: bool = ..., aligned: bool = ...) -> None: ...

class UniTuple(Type):
    dtype: Type
    count: int
    def __init__(self, dtype: Type, count: int) -> None: ...

class Tuple(Type):
    def __init__(self, types: Any) -> None: ...

class Integer(Type):
    bitwidth: int
    signed: bool

class Float(Type):
    bitwidth: int

class CPointer(Type):
    def __init__(self, dtype: Type) -> None: ...

boolean: Type
float16: Type
float32: Type
float64: Type
complex64: Type
complex128: Type
int8: Type
int16: Type
int32: Type
int64: Type
uint8: Type
uint16: Type
uint32: Type
uint64: Type
intp: Type
uintp: Type
void: Type
voidptr: Type
none: Type
range_state64_type: Type
def unliteral(kind: Type) -> Type: ...
