"""Of tests/cpp/test_translate_mma.cpp."""

from fuser_lab.dtypes import DataType
from tests.nvfuser_assertions.assertion import Assertions

FILE = Assertions("tests/cpp/test_translate_mma.cpp")
FILE.inexpressible("nvFuser skips the test on every device: the class requires 9.0, the test less than 9.0", 294)

M, N, K = 504, 136, 248
LAYOUT_PASS_OFF = {"disable_preseg": ["AllocationDomainPass"]}
FUSED = {"enable": ["fuse_matmul"], **LAYOUT_PASS_OFF}


def shape(axes, *last):
    return [*[3] * max(axes - 2, 0), *last[-min(axes, 2) :]]


def half(fd, axes, order=()):
    return fd.define_tensor([-1] * axes, contiguity=True, dtype=DataType.Half, stride_order=order)


def add_after(fd, ops, product):
    fd.add_output(ops.cast(ops.sin(product), DataType.Half))


def for_products(define):
    """Add the parameters of nvFuser: axes of both operands, the option, a transposed layout, and the answer."""
    for a, b, fused, transposed, answer in (
        (2, 2, False, False, None), (2, 2, False, True, None), (2, 2, True, False, "matmul"),
        (2, 2, True, True, "matmul"), (1, 2, True, False, None), (2, 1, True, False, None),
        (1, 1, True, False, None), (3, 1, True, False, None), (3, 3, True, False, "matmul"),
        (4, 4, True, False, "matmul"), (2, 3, True, False, None), (3, 4, True, False, None),
    ):
        first = (shape(a, M, K), "float16", [1, M]) if transposed else (shape(a, M, K), "float16")
        second = (shape(b, K, N) if b > 1 else [K], "float16")
        stated = {"schedulers": answer} if answer else {"least": 2, "times": {"expr_eval": 1}}
        FILE.asserts(
            398 if answer is None else 400, **stated, inputs=[first, second], values=(a, b, transposed),
            options=FUSED if fused else LAYOUT_PASS_OFF,
        )(define)
    return define


@for_products
def product_and_sine(fd, ops, a, b, transposed):
    add_after(fd, ops, ops.matmul(half(fd, a, (0, 1) if transposed else ()), half(fd, b)))


def for_linears(define):
    """Add the parameters of nvFuser: axes of input and bias, the option, a transposed layout, and the answer."""
    for a, bias, fused, transposed, answer in (
        (2, False, False, False, None), (2, False, False, True, None), (1, False, False, False, None),
        (2, True, False, False, None), (3, True, False, False, None), (4, True, False, False, None),
        (2, False, True, False, "matmul"), (2, False, True, True, "matmul"), (2, True, True, False, "matmul"),
    ):
        first = (shape(a, M, K), "float16", [1, M]) if transposed else (shape(a, M, K), "float16")
        inputs = [first, ([N, K], "float16"), *[([N], "float16")] * bias]
        stated = {"schedulers": answer} if answer else {"least": 2, "times": {"expr_eval": 1}}
        FILE.asserts(
            580 if answer is None else 582, **stated, inputs=inputs, values=(a, bias, transposed),
            options=FUSED if fused else LAYOUT_PASS_OFF,
        )(define)
    return define


@for_linears
def linear_and_sine(fd, ops, a, bias, transposed):
    x, weight = half(fd, a, (0, 1) if transposed else ()), half(fd, 2)
    add_after(fd, ops, ops.linear(x, weight, half(fd, 1)) if bias else ops.linear(x, weight))
