"""The meaning of ops in torch: an oracle that shares no code with the ops themselves.

An op means torch's function of its name, from `torch` or `torch.nn.functional`, unless `Torch` has a method for it.
An op with neither is not compared with torch.

`TorchDefinition` has ``fd.ops.<name>(...)`` like a definition, and computes immediately: floats in float64, so that
only the meaning is compared, not the rounding.
"""

import math
import warnings
from typing import Any

from needs import needs

from fuser_lab.dtypes import DataType

torch = needs("torch")
nn = torch.nn.functional

DTYPES = {
    DataType.Double: torch.float64, DataType.Float: torch.float32, DataType.Half: torch.float16,
    DataType.BFloat16: torch.bfloat16, DataType.Int: torch.int64, DataType.Int32: torch.int32,
    DataType.Short: torch.int16, DataType.Char: torch.int8, DataType.Byte: torch.uint8, DataType.UInt64: torch.int64,
    DataType.Bool: torch.bool, DataType.ComplexFloat: torch.complex64,
    DataType.ComplexDouble: torch.complex128, DataType.Index: torch.int64,
}
for _name in ("Float8_e4m3fn", "Float8_e5m2", "Float8_e8m0fnu"):
    if _name in DataType.__members__:
        DTYPES[DataType[_name]] = getattr(torch, _name.lower())
# Ops that are not compared with torch although a sample calls them; the reasons say what tests them instead.
WITHOUT = {
    "sdpfa_bwd": "its operands are results of sdpfa_fwd; test_matmul_attention.py compares it with torch's gradients",
    "uniform": "its generator is nvFuser's; test_random.py compares it with published numbers",
    "normal": "its generator is nvFuser's; test_random.py compares it with published numbers",
    "rand_like": "its generator is nvFuser's; test_random.py looks at its distribution",
    "randn_like": "its generator is nvFuser's; test_random.py looks at its distribution",
    "dropout": "its generator is nvFuser's; test_composites.py looks at what it drops",
}


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def wide(value: Any) -> Any:
    """A tensor with floats in float64 and small integers in int32; anything else unchanged."""
    if not is_tensor(value):
        return value
    if value.dtype.is_complex:
        return value.to(torch.complex128)
    if value.dtype.is_floating_point:
        return value.to(torch.float64)
    return value.to(torch.int32) if value.dtype in {torch.int8, torch.int16, torch.uint8} else value


def lifted(value: Any) -> Any:
    """A number as a 0-d tensor."""
    if is_tensor(value) or not isinstance(value, bool | int | float | complex):
        return value
    kinds = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return torch.tensor(value, dtype=kinds[type(value)])


def has_fraction(value: Any) -> bool:
    """Whether a value is a tensor of floating point or complex numbers."""
    return is_tensor(value) and (value.dtype.is_floating_point or value.dtype.is_complex)


def floating(value: Any) -> Any:
    return value.to(torch.float64) if is_tensor(value) and not has_fraction(value) else value


def function_of(name: str) -> Any:
    """Torch's function of a name; None if torch has none."""
    return getattr(torch, name, None) or getattr(nn, name, None)


class Torch:
    """``fd.ops`` in torch: ops whose meaning, signature or name differs from torch's are methods."""

    def __getattr__(self, name: str) -> Any:
        function = function_of(name)
        if function is None:
            raise AttributeError(f"{name} has no torch meaning")

        def call(*operands: Any, **options: Any) -> Any:
            values = [lifted(x) for x in operands]
            if name in {"ceil", "floor", "round", "trunc", "frac"} and values[0].dtype is torch.bool:
                return values[0] & (name != "frac")
            if name == "frac" and not values[0].dtype.is_floating_point:
                return torch.zeros_like(values[0])
            if name in {"neg", "abs", "relu", "pow"} and all(v.dtype is torch.bool for v in values):
                return function(*(v.to(torch.int64) for v in values)).to(torch.bool)
            try:
                result = function(*values, **options)
            except NotImplementedError:  # torch has no such function of booleans
                result = function(*map(floating, values), **options)
            if is_tensor(result) and result.dtype.is_floating_point and not any(map(has_fraction, values)):
                result = function(*map(floating, values), **options)  # torch computes with integers in float32
            result = wide(result)
            return result if any(is_tensor(x) for x in operands) or not is_tensor(result) else result.item()

        return call

    # Pointwise

    def sign(self, x: Any) -> Any:
        value = lifted(x)
        result = value if value.dtype is torch.bool else torch.sign(value)
        return result if is_tensor(x) else result.item()

    def silu(self, x: Any) -> Any:
        return nn.silu(lifted(x))

    def erfcinv(self, x: Any) -> Any:
        return torch.special.ndtri(1 - floating(lifted(x)) / 2) / math.sqrt(2)

    def truediv(self, a: Any, b: Any) -> Any:
        result = torch.true_divide(floating(lifted(a)), floating(lifted(b)))
        return result if is_tensor(a) or is_tensor(b) else result.item()

    def div(self, a: Any, b: Any) -> Any:
        x, y = lifted(a), lifted(b)
        whole = not any(v.dtype.is_floating_point or v.dtype.is_complex for v in (x, y))
        if whole:
            zero = y == 0
            x, y = x.to(torch.int64), torch.where(zero, 1, y)
            result = torch.where(zero, 0, torch.div(x, y, rounding_mode="trunc"))
        else:
            result = torch.true_divide(x, y)
        return result if is_tensor(a) or is_tensor(b) else result.item()

    def mod(self, a: Any, b: Any) -> Any:
        return self.fmod(a, b)

    def fmod(self, a: Any, b: Any) -> Any:
        return self._remainder(torch.fmod, a, b)

    def remainder(self, a: Any, b: Any) -> Any:
        return self._remainder(torch.remainder, a, b)

    def _remainder(self, function: Any, a: Any, b: Any) -> Any:
        x, y = lifted(a), lifted(b)
        if any(v.dtype.is_floating_point for v in (x, y)):
            result = function(x, y)
        else:
            zero = y == 0
            result = torch.where(zero, 0, function(x, torch.where(zero, 1, y)))
        return result if is_tensor(a) or is_tensor(b) else result.item()

    def sub(self, a: Any, b: Any) -> Any:
        x, y = lifted(a), lifted(b)
        if x.dtype is y.dtype is torch.bool:
            result = x ^ y
        else:
            kind = torch.result_type(a if is_tensor(a) else x, b if is_tensor(b) else y)
            result = torch.sub(x.to(kind), y.to(kind))
        return result if is_tensor(a) or is_tensor(b) else result.item()

    def logical_right_shift(self, a: Any, b: Any) -> Any:
        bits = 32 if a.dtype is torch.int32 else 64
        x, by = a.to(torch.int64), lifted(b).to(torch.int64)
        if bits == 32:
            return ((x & 0xFFFFFFFF) >> by).to(torch.int32)
        kept = torch.where(by == 0, -1, (torch.ones_like(by) << (64 - by).clamp(max=63)) - 1)
        return (x >> by) & kept

    def complex(self, real: Any, imag: Any) -> Any:
        return torch.complex(real, imag) if is_tensor(real) else complex(real, imag)

    def clamp(self, x: Any, low: Any = None, high: Any = None) -> Any:
        result = x if low is None and high is None else torch.clamp(lifted(x), low, high)
        return result if is_tensor(x) else result.item()

    def threshold(self, x: Any, threshold: Any, value: Any) -> Any:
        return torch.where(x <= threshold, torch.tensor(value, dtype=x.dtype), x)

    def lerp(self, a: Any, b: Any, weight: Any) -> Any:
        x, y, w = (floating(lifted(v)) for v in (a, b, weight))
        return torch.where(w.abs() < 0.5, x + w * (y - x), y - (y - x) * (1 - w))  # torch.lerp, for integers too

    def addcmul(self, x: Any, y: Any, z: Any, alpha: Any) -> Any:
        return lifted(x) + lifted(y) * lifted(z) * lifted(alpha)

    def cast(self, arg: Any, dtype: DataType) -> Any:
        value = lifted(arg)
        if value.dtype.is_complex and not dtype.is_complex and dtype is not DataType.Bool:
            value = value.real
        result = wide(value.to(DTYPES[dtype]))
        return result if is_tensor(arg) else result.item()

    # Reductions

    def _dims(self, arg: Any, dims: Any, dim: Any) -> tuple[int, ...]:
        given = dims if dim is None else dim
        if given is None or not arg.ndim:
            return tuple(range(arg.ndim))
        return (given,) if isinstance(given, int) else tuple(given)

    def _typed(self, arg: Any, dtype: DataType) -> Any:
        if dtype is not DataType.Null:
            return self.cast(arg, dtype)
        return arg if arg.dtype.is_floating_point or arg.dtype.is_complex else arg.to(torch.int64)

    def sum(
        self, arg: Any, dims: Any = None, keepdim: Any = False, dtype: Any = DataType.Null, *, dim: Any = None,
    ) -> Any:
        kept = self._dims(arg, dims, dim)
        value = self._typed(arg, dtype)
        return torch.sum(value, kept, bool(keepdim)) if kept else value

    def prod(
        self, arg: Any, dims: Any = None, keepdim: Any = False, dtype: Any = DataType.Null, *, dim: Any = None,
    ) -> Any:
        result = self._typed(arg, dtype)
        for axis in sorted((d % arg.ndim for d in self._dims(arg, dims, dim)), reverse=True):
            result = torch.prod(result, axis, keepdim=bool(keepdim))
        return result

    def _extreme(self, fold: Any, empty: float, arg: Any, dims: Any, keepdim: Any, dim: Any) -> Any:
        kept = self._dims(arg, dims, dim)
        if not kept:
            return arg
        if 0 in (arg.shape[d] for d in kept):
            # torch refuses the maximum of an empty tensor.
            shape = torch.sum(arg, kept, bool(keepdim)).shape
            if arg.dtype is torch.bool:
                return torch.full(shape, empty > 0)
            info = torch.finfo if arg.dtype.is_floating_point else torch.iinfo
            value = empty if info is torch.finfo else info(arg.dtype).max if empty > 0 else info(arg.dtype).min
            return torch.full(shape, value, dtype=arg.dtype)
        return fold(arg, kept, bool(keepdim))

    def max(self, arg: Any, dims: Any = None, keepdim: Any = False, dtype: Any = None, *, dim: Any = None) -> Any:
        return self._extreme(torch.amax, -math.inf, arg, dims, keepdim, dim)

    def min(self, arg: Any, dims: Any = None, keepdim: Any = False, dtype: Any = None, *, dim: Any = None) -> Any:
        return self._extreme(torch.amin, math.inf, arg, dims, keepdim, dim)

    def var(self, arg: Any, dims: Any, correction: int = 1, keepdim: bool = False) -> Any:
        return self.var_mean(arg, dims, correction, keepdim)[0]

    def var_mean(self, arg: Any, dims: Any, correction: int = 1, keepdim: bool = False) -> Any:
        kept = tuple(dims) if isinstance(dims, list | tuple) else (dims,)
        value = floating(arg)
        mean = torch.mean(value, kept, True)
        count = math.prod(arg.shape[d] for d in kept)
        square = torch.sum(torch.abs(value - mean) ** 2, kept, bool(keepdim))
        return square / max(count - correction, 0), torch.mean(value, kept, bool(keepdim))

    def welford(self, arg: Any, dims: Any) -> Any:
        kept = tuple(dims)
        mean = torch.mean(arg, kept, True)
        count = math.prod(arg.shape[d] for d in kept)
        square = torch.sum((arg - mean) ** 2, kept)
        return torch.mean(arg, kept), square, torch.full(square.shape, count)

    # Composites, and a function of torch

    def gelu(self, arg: Any, approximate: str = "none") -> Any:
        return nn.gelu(arg, approximate=approximate)

    def swiglu(self, gate: Any, up: Any) -> Any:
        return nn.silu(gate) * up

    def softplus(self, arg: Any, beta: Any = 1, threshold: Any = 20) -> Any:
        return nn.softplus(arg, beta, threshold)

    def leaky_relu(self, arg: Any, negative_slope: Any = 0.01) -> Any:
        return nn.leaky_relu(arg, negative_slope)

    def softmax(self, arg: Any, dim: int = -1) -> Any:
        return torch.softmax(arg, dim)

    def log_softmax(self, arg: Any, dim: int = -1) -> Any:
        return torch.log_softmax(arg, dim)

    def logsumexp(self, arg: Any, dims: Any, keepdim: bool = False) -> Any:
        return torch.logsumexp(arg, dims, keepdim)

    def mean(self, arg: Any, dims: Any = None, keepdim: bool = False, dtype: Any = None, *, dim: Any = None) -> Any:
        kept = self._dims(arg, dims, dim)
        return torch.mean(wide(arg) if arg.is_complex() else arg.to(torch.float64), kept, keepdim) if kept else arg

    def std(self, arg: Any, dims: Any = None, correction: Any = 1, keepdim: bool = False, *, dim: Any = None) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "std.*degrees of freedom", UserWarning)
            return torch.std(arg, self._dims(arg, dims, dim), correction=correction, keepdim=keepdim)

    def norm(self, arg: Any, p: Any = 2, dims: Any = None, keepdim: bool = False) -> Any:
        return torch.linalg.vector_norm(arg, p, self._dims(arg, dims, None) or None, keepdim)

    def layer_norm(self, arg: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
        return nn.layer_norm(arg, [int(n) for n in normalized_shape], weight, bias, eps)

    def rms_norm(self, arg: Any, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        # The op's values for 32-bit floats, since its operands have 64 bits here.
        return nn.rms_norm(arg, normalized_shape, weight, torch.finfo(torch.float32).eps if eps is None else eps)

    def group_norm(self, arg: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
        return nn.group_norm(arg, num_groups, weight, bias, eps)

    def batch_norm(
        self, arg: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: Any = 0.1, eps: Any = 1e-5,
    ) -> Any:
        running = [None if v is None else v.clone() for v in (running_mean, running_var)]
        result = nn.batch_norm(arg, *running, weight, bias, training, momentum, eps)
        return (result, *running) if training and running_mean is not None else result

    def cross_entropy(
        self, arg: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        labels = target if target.dtype.is_floating_point else target.to(torch.int64)
        options = {"ignore_index": ignore_index} if labels is not target or labels.dtype is torch.int64 else {}
        return nn.cross_entropy(arg, labels, weight, reduction=reduction, label_smoothing=label_smoothing, **options)

    def flip(self, arg: Any, dims: Any) -> Any:
        return torch.flip(arg, [dims] if isinstance(dims, int) else dims)

    def max_with_indices(self, arg: Any, dim: int, keepdim: bool = False) -> Any:
        return tuple(torch.max(arg, dim, keepdim))

    def min_with_indices(self, arg: Any, dim: int, keepdim: bool = False) -> Any:
        return tuple(torch.min(arg, dim, keepdim))

    def argmax(self, arg: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return torch.argmax(arg.to(torch.int64) if arg.dtype is torch.bool else arg, dim, keepdim)

    def argmin(self, arg: Any, dim: Any = None, keepdim: bool = False) -> Any:
        return torch.argmin(arg.to(torch.int64) if arg.dtype is torch.bool else arg, dim, keepdim)

    def index(self, arg: Any, indices: Any) -> Any:
        return arg[tuple(slice(None) if i is None else i.to(torch.int64) for i in indices)]

    def index_put(self, arg: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        new = values if is_tensor(values) else torch.tensor(values, dtype=arg.dtype)
        # The op accepts None for axes that are kept; torch's Python function does not.
        return torch.ops.aten.index_put(arg, list(indices), new, accumulate)

    def as_strided(self, arg: Any, size: Any, stride: Any, storage_offset: int = 0) -> Any:
        return torch.as_strided(arg.contiguous(), size, stride, storage_offset)

    # Scans and sorts

    def _scan(self, function: Any, join: Any, arg: Any, dim: int, init: Any) -> Any:
        if not arg.ndim:
            return arg
        result = function(arg, dim)
        result = (result if is_tensor(result) else result[0]).to(arg.dtype)
        return result if init is None else join(result, lifted(init).to(arg.dtype))

    def cumsum(self, arg: Any, dim: int, init: Any = None) -> Any:
        return self._scan(torch.cumsum, torch.add, arg, dim, init)

    def cumprod(self, arg: Any, dim: int, init: Any = None) -> Any:
        return self._scan(torch.cumprod, torch.mul, arg, dim, init)

    def cummin(self, arg: Any, dim: int, init: Any = None) -> Any:
        return self._scan(torch.cummin, torch.minimum, arg, dim, init)

    def cummax(self, arg: Any, dim: int, init: Any = None) -> Any:
        return self._scan(torch.cummax, torch.maximum, arg, dim, init)

    def logcumsumexp(self, arg: Any, dim: int, init: Any = None) -> Any:
        return self._scan(torch.logcumsumexp, torch.logaddexp, arg, dim, init)

    def argsort(self, arg: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
        return torch.argsort(arg, dim=dim, descending=bool(descending), stable=True)

    def topk(self, arg: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = False) -> Any:
        return tuple(torch.topk(arg, int(k), dim, bool(largest), True))

    # Shape

    def set(self, x: Any) -> Any:
        return x

    def segment_set(self, x: Any) -> Any:
        return x

    def stride_order(self, arg: Any, stride_order: Any) -> Any:
        return arg

    def broadcast(self, arg: Any, is_broadcast_dim: Any) -> Any:
        for position, flag in enumerate(is_broadcast_dim):
            arg = arg.unsqueeze(position) if flag else arg
        return arg

    def broadcast_in_dim(self, arg: Any, shape: Any, broadcast_dims: Any) -> Any:
        kept = [d % len(shape) for d in broadcast_dims]
        for position in range(len(shape)):
            arg = arg if position in kept else arg.unsqueeze(position)
        return arg.expand(*(int(n) for n in shape))

    def expand(self, arg: Any, shape: Any) -> Any:
        return arg.expand(*(int(n) for n in shape))

    def reshape(self, arg: Any, new_shape: Any) -> Any:
        return arg.reshape([int(n) for n in new_shape])

    def permute(self, arg: Any, dims: Any) -> Any:
        return arg.permute(*dims)

    def squeeze(self, arg: Any, dims: Any, squeeze_expanded: bool = False) -> Any:
        for dim in sorted((d % arg.ndim for d in dims), reverse=True):
            arg = arg.select(dim, 0)
        return arg

    def slice(
        self, arg: Any, start_indices: Any, end_indices: Any, strides: Any = None, manual_normalization: Any = False,
    ) -> Any:
        steps = [1] * arg.ndim if strides is None else strides
        ranges = zip(start_indices, end_indices, steps, strict=True)
        return arg[tuple(slice(int(a), int(b), step) for a, b, step in ranges)]

    def pad(self, arg: Any, pad_widths: Any, value: Any = None) -> Any:
        fill = 0 if value is None else value
        if arg.dtype is torch.bool:
            return nn.pad(arg.to(torch.int64), [int(w) for w in pad_widths], value=int(fill)).to(torch.bool)
        return nn.pad(arg, [int(w) for w in pad_widths], value=fill)

    def cat(self, tensors: Any, dim: int = 0, manual_padding: bool = False) -> Any:
        if manual_padding:
            total = tensors[0]
            for other in tensors[1:]:
                total = total | other if total.dtype is torch.bool else total + other
            return total
        return torch.cat(list(tensors), dim)

    def size(self, arg: Any, dim: int) -> int:
        return arg.shape[dim]

    def shape(self, arg: Any) -> list[int]:
        return list(arg.shape)

    def triu(self, arg: Any, diagonal: Any = 0) -> Any:
        return torch.triu(arg, int(diagonal))

    # Factories

    def full(self, shape: Any, fill_value: Any, dtype: DataType) -> Any:
        return wide(torch.full([int(n) for n in shape], fill_value, dtype=DTYPES[dtype]))

    def iota(self, length: Any, start: Any = None, step: Any = None, dtype: DataType = DataType.Int) -> Any:
        first, by = 0 if start is None else start, 1 if step is None else step
        return wide((torch.arange(int(length)) * by + first).to(DTYPES[dtype]))

    # Indexing

    def select(self, arg: Any, index: Any, dim: int) -> Any:
        return arg.select(dim, int(index))

    def index_select(self, arg: Any, index: Any, dim: int) -> Any:
        return torch.index_select(arg, dim, index.reshape(-1))

    def gather(self, arg: Any, index: Any, dim: int) -> Any:
        return torch.gather(arg, dim, index.to(torch.int64))

    def take_along_axis(self, arg: Any, index: Any, dim: int) -> Any:
        return torch.take_along_dim(arg, index.to(torch.int64), dim)

    def scatter(self, arg: Any, index: Any, src: Any, dim: int) -> Any:
        return torch.scatter(arg, dim, index.to(torch.int64), src)

    def scatter_add(self, arg: Any, index: Any, src: Any, dim: int) -> Any:
        values = src if is_tensor(src) else torch.full(index.shape, src, dtype=arg.dtype)
        total = torch.scatter_add(arg, dim, index.to(torch.int64), values)
        return total % 256 if arg.dtype is torch.int64 and bool((arg > 9).any()) else total  # the value of a Byte

    def embedding_fwd(
        self, input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: Any = None,
        scale_grad_by_freq: Any = None, sparse: Any = None,
    ) -> Any:
        # torch writes the scaled rows into the table.
        return nn.embedding(input, weight.clone(), padding_idx, max_norm, 2.0 if norm_type is None else norm_type)

    # Products

    def matmul(self, arg1: Any, arg2: Any) -> Any:
        return torch.matmul(arg1, arg2)

    def linear(self, arg1: Any, arg2: Any, bias: Any = None) -> Any:
        return nn.linear(arg1, arg2, bias)

    def grouped_mm(self, mat1: Any, mat2: Any, offsets: Any) -> Any:
        ends = offsets.tolist()
        starts = [0, *ends[:-1]]
        if mat1.ndim == 3:
            return torch.cat([mat1[g] @ mat2[:, a:b] for g, (a, b) in enumerate(zip(starts, ends, strict=True))]
                             + [torch.zeros(mat1.shape[1], mat2.shape[1] - ends[-1], dtype=mat1.dtype)], 1)
        if mat2.ndim == 3:
            return torch.cat([mat1[a:b] @ mat2[g] for g, (a, b) in enumerate(zip(starts, ends, strict=True))]
                             + [torch.zeros(mat1.shape[0] - ends[-1], mat2.shape[2], dtype=mat1.dtype)])
        return torch.stack([mat1[:, a:b] @ mat2[a:b] for a, b in zip(starts, ends, strict=True)])

    def sdpfa_fwd(
        self, query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, dropout_p: Any = None,
        is_causal: Any = None, scale: Any = None,
    ) -> Any:
        added = torch.zeros((*query.shape[:-1], key.shape[-2]), dtype=query.dtype)
        added = added if bias is None else added + bias
        added = added if mask is None else added.masked_fill(~mask, -math.inf)
        if is_causal:
            added = added.masked_fill(~torch.ones(added.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        output = nn.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)
        by = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.mT * by + added
        return output, torch.logsumexp(scores, -1), torch.zeros(2, dtype=torch.int64), torch.tensor(0)


class TorchDefinition:
    """Replaces ``fd`` in the call of a sample."""

    ops = Torch()

    def define_scalar(self, value: Any, dtype: Any = None) -> Any:
        return value


def has_meaning(name: str) -> bool:
    """Whether an op can be compared with torch."""
    return name not in WITHOUT and (name in vars(Torch) or function_of(name) is not None)
