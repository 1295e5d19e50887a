"""The predicted time of a kernel, from its launch, the bytes that it moves, and its arithmetic by class.

A roofline (Williams, Waterman and Patterson, CACM 2009) with a launch: a kernel takes the longer of its memory time and
its arithmetic time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuser_lab.cost.amounts import seconds_label
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.host_time import HostRates
from fuser_lab.cost.kernel_time import Prediction
from fuser_lab.cost.traffic import LAUNCH_SECONDS, bytes_read, may_view, seen_as
from fuser_lab.cost.work import Work, product_flops, repeated_work, work_of
from fuser_lab.ir import Expr, Fusion, OpKind

# The ratio of additions to divisions or functions that a GPU completes per second: a multiprocessor has 128 lanes
# for float32 and 16 for special functions (CUDA C++ Programming Guide, arithmetic instructions).
_SLOWER = 8
_FLOAT = 4  # bytes
_ROUNDING = 1e-9  # relative error of sums of seconds in different orders, at most
_TIMES_FROM = 10.0  # time / bound from which a sentence has this factor instead of %


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeModel:
    """Seconds per launch, byte and operation of one device.

    Attributes
    ----------
    device
        Name of the device.
    launch
        Seconds that each kernel takes beyond its bytes and arithmetic.
    bandwidth
        Bytes per second that memory moves.
    cache, cache_bandwidth
        Size of the last-level cache in bytes, and bytes per second for tensors that fit in it; 0 if there is none.
    simple, dividing, special, reducing
        Operations per second of each class of `Work`.
    product
        Floating-point operations per second of matrix products.
    fastest
        Bytes per second that no kernel exceeds; 0 if ``bandwidth`` and ``cache_bandwidth`` are the limits.
    repeats
        Whether the arithmetic of a broadcast value counts as often as a kernel computes it.
    low, high
        Factors on a prediction: 80 % of measured times lie between them; both are 1 for a model from a data sheet.
    """

    device: str
    launch: float
    bandwidth: float
    simple: float
    dividing: float
    special: float
    reducing: float
    product: float
    cache: int = 0
    cache_bandwidth: float = 0.0
    fastest: float = 0.0
    low: float = 1.0
    high: float = 1.0
    repeats: bool = False

    @classmethod
    def of(cls, device: Device = DEFAULT, launch: float = LAUNCH_SECONDS) -> "TimeModel":
        """Return the model of a device: a CPU's fitted rates, or a GPU's data sheet.

        Data sheets count a fused multiply-add as two operations.
        """
        if device.host is not None:
            return cls._of_host(device.host, device.name)
        simple = device.fp32 * 1e12 / 2
        return cls(
            device=device.name, launch=launch, bandwidth=device.bandwidth * 1e9, simple=simple, reducing=simple,
            dividing=simple / _SLOWER, special=simple / _SLOWER, product=device.bf16 * 1e12 or 2 * simple,
        )

    @classmethod
    def _of_host(cls, rates: HostRates, name: str) -> "TimeModel":
        """Return the model of a CPU with all cores busy, all loops vectorized, and each line moved once."""
        cores = rates.caches.threads
        vectors = cores / _FLOAT
        return cls(
            device=name, launch=rates.call, bandwidth=rates.bandwidth, cache=round(rates.last),
            cache_bandwidth=cores / (rates.near + rates.far), fastest=cores / max(rates.near, rates.vectors),
            simple=vectors / rates.simple, reducing=vectors / rates.simple, dividing=vectors / rates.dividing,
            special=cores / rates.function, product=rates.product, low=rates.low, high=rates.high, repeats=True,
        )

    def arithmetic(self, work: Work, flops: int = 0) -> float:
        """Return the seconds of arithmetic."""
        return (
            work.simple / self.simple + work.dividing / self.dividing + work.special / self.special
            + work.reducing / self.reducing + flops / self.product
        )

    def memory(self, moved: int) -> float:
        """Return the seconds in which a kernel moves bytes, from the cache if all of them fit there."""
        rate = self.cache_bandwidth if 0 < moved <= self.cache else self.bandwidth
        return moved / rate

    def seconds(self, moved: int, work: Work, flops: int = 0) -> float:
        """Return the predicted time of a kernel: its launch, and the longer of memory time and arithmetic time."""
        return self.launch + max(self.memory(moved), self.arithmetic(work, flops))

    def kernel(self, exprs: Iterable[Expr], moved: int) -> float:
        """Return the predicted time of expressions as one segment that moves bytes."""
        chosen = tuple(exprs)
        return self.seconds(moved, self.work(chosen), product_flops(chosen))

    def work(self, exprs: Sequence[Expr]) -> Work:
        """Return the arithmetic of expressions, in order, as one segment."""
        return repeated_work(exprs) if self.repeats else work_of(exprs)

    def predict(self, moved: int, work: Work, flops: int, source: str) -> Prediction:
        """Return the predicted time of a kernel, with bounds that hold for 80 % of measured times."""
        seconds = self.seconds(moved, work, flops)
        return Prediction(
            seconds=seconds, low=self.low * seconds, high=self.high * seconds, source=source, launch=self.launch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """The time of a plan by bytes and arithmetic beside a lower bound for all plans, with the assumptions of the bound.

    ``seconds`` is the longer of both for each kernel, and a launch; `Plan.predicted_time` also depends on how kernels
    are scheduled. ``terms`` pairs the seconds that every plan pays with a sentence; they add up to ``bound``.
    """

    model: TimeModel
    seconds: float
    bound: float
    terms: tuple[tuple[float, str], ...]
    assumptions: tuple[str, ...]

    @property
    def gap(self) -> float:
        """How much slower the plan is, as a fraction of the bound."""
        return self.seconds / self.bound - 1 if self.bound else 0.0

    @property
    def status(self) -> str:
        """How much slower the plan is than any plan, both by bytes and arithmetic, in a few words."""
        if self.gap < _ROUNDING:
            return "no plan is faster by bytes and arithmetic"
        times = self.gap + 1
        slower = f"{100 * self.gap:.3g} % slower than" if times < _TIMES_FROM else f"{times:.0f} times as slow as"
        return f"at most {slower} the fastest possible plan, by bytes and arithmetic"

    def __str__(self) -> str:
        """Return the certificate as text."""
        lines = [
            self.status,
            f"this plan  {seconds_label(self.seconds)} by bytes and arithmetic on {self.model.device}",
            f"bound      {seconds_label(self.bound)}: no plan takes less by bytes and arithmetic",
            "every plan pays",
            *(f"  {seconds_label(seconds):>10}  {text}" for seconds, text in self.terms),
            "the bound assumes",
            *(f"  {text}" for text in self.assumptions),
        ]
        return "\n".join(lines)

    __repr__ = __str__


def time_bound(fusion: Fusion, model: TimeModel, seconds: float) -> TimeBound:
    """Return the time of a plan by bytes and arithmetic beside a bound for all plans, recomputation included.

    The bound assumes one launch in which each input is read once and each output is written once, or every expression
    is computed once, whichever takes longer. Views are free. A matrix product is a separate launch that reads its
    operands and writes its result, unless it is fused.
    """
    products = [expr for expr in fusion.tensor_exprs if _is_product(expr)]
    alone = sum(model.kernel([expr], _touched_bytes(expr)) for expr in products)
    views = {expr for expr in fusion.tensor_exprs if may_view(expr)}
    rest = [expr for expr in fusion.tensor_exprs if expr not in views and not _is_product(expr)]
    outputs = {*fusion.outputs, *(v for expr in products for v in expr.tensor_inputs)}
    least = bytes_read(fusion.tensor_exprs, fusion.tensors.values(), fusion.outputs)
    memory = 0.0
    fast = max(model.bandwidth, model.cache_bandwidth, model.fastest)
    for tensor in fusion.tensors.values():
        maker = fusion.producers.get(tensor)
        if maker in views:
            continue  # a view of a tensor that counts
        seen, users = seen_as(fusion, tensor, views)
        if (maker is None or _is_product(maker)) and not set(users).isdisjoint(rest):
            memory += min(least[view] for view in seen if view in fusion.users) / fast
        if maker in rest and not outputs.isdisjoint(seen):
            memory += min(view.nbytes for view in seen) / fast
    arithmetic = model.arithmetic(work_of(rest))
    terms: list[tuple[float, str]] = []
    if products:
        which = "product is a launch that moves" if len(products) == 1 else "products are launches that move"
        terms.append((alone, f"{len(products)} matrix {which} operands and result"))
    if rest:
        terms.append((model.launch, "at least one launch of a kernel"))
        which = "inputs are read once and outputs written once"
        terms.append((max(memory, arithmetic), which if memory >= arithmetic else "everything is computed once"))
    return TimeBound(
        model=model, seconds=seconds, bound=sum(duration for duration, _ in terms), terms=tuple(terms),
        assumptions=(
            (
                f"{model.bandwidth / 1e9:,.0f} GB/s, {1e6 * model.launch:.3g} µs per launch, "
                f"{model.simple / 1e12:.3g} T simple operations per second"
            ),
            "no kernel reads less than each input that it depends on, or is faster than these rates",
            "any expressions may share a kernel, except matrix products",
        ),
    )


def _is_product(expr: Expr) -> bool:
    return expr.kind is OpKind.MATMUL


def _touched_bytes(expr: Expr) -> int:
    return sum(tensor.nbytes for tensor in {*expr.tensor_inputs, *expr.tensor_outputs})

