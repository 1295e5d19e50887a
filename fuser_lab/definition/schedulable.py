"""The scheduling methods of tensors, and the same as functions of a definition: each appends one transform."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NoReturn

from fuser_lab.arguments import short_text
from fuser_lab.definition import schedule_arguments
from fuser_lab.definition.loop_axis import LoopAxis
from fuser_lab.definition.owner import Owner
from fuser_lab.definition.schedule_arguments import (
    check_copy,
    memory,
    names,
    order_of,
    parallel_type,
    parallel_types,
    param_arguments,
    sharing,
    template_arguments,
    whole,
    wholes,
)
from fuser_lab.definition.scheduling import HandSchedule, Steps
from fuser_lab.errors import ArgumentTypeError, ScheduleError, UnsupportedError
from fuser_lab.ir.transform import ParallelType, ScheduledTensor, Transform
from fuser_lab.ir.transform_arguments import check_in_range
from fuser_lab.ops.arguments import flag

_NO_SWIZZLE = "is not supported: shared memory is written and read in the order of loops"


class Schedulable:
    """The schedule by hand of a tensor of a definition; the definition itself never changes.

    Axes are positions in the loop domain, negative ones from its end. Each method checks its transform by replaying the
    schedule, and raises ScheduleError with a sentence that says why if it is illegal; the schedule is then unchanged.
    """

    __slots__ = ()
    builder: Owner
    val: Any

    @property
    def scheduled(self) -> ScheduledTensor:
        """The tensor with its loops; ScheduleError if no output needs it."""
        scheduled = self.builder.hand.scheduled.tensors.get(self.val.name)
        if scheduled is None:
            raise ScheduleError(f"{self.val.name} is not a tensor that any output of this fusion needs.")
        return scheduled

    def __str__(self) -> str:
        """Return IR text, with the loops of the schedule by hand."""
        return self.builder.hand.text_of(self.val) or str(self.val)

    __repr__ = __str__

    def _add(self, kind: str, **args: Any) -> None:
        self.builder.hand.add(kind, self.val.name, **args)

    def _make(self, kind: str, **args: Any) -> Any:
        return self.builder.wrap(self.builder.hand.add_made(kind, self.val.name, **args))

    def axis(self, position: int) -> Any:
        """Return a loop, which can be parallelized as ``axis(0).parallelize(type)``."""
        scheduled = self.scheduled
        check_in_range("axis", scheduled, whole("axis", "position", position))
        return LoopAxis(scheduled.loop[position], self)

    def split(self, axis: int, factor: int, inner_split: bool = True) -> None:
        """Split a loop: ``i -> ceil(i / factor), factor``, or ``factor, ceil(i / factor)`` if not inner_split.

        If the factor does not divide the loop's extent, a predicate skips the surplus iterations.
        """
        self._add("split", axis=whole("split", "axis", axis), factor=whole("split", "factor", factor),
                  inner_split=flag(inner_split, "split", "inner_split"))

    def inner_split(self, axis: int, factor: int) -> None:
        """Split so that the inner loop has ``factor`` iterations."""
        self.split(axis, factor)

    def outer_split(self, axis: int, factor: int) -> None:
        """Split so that the outer loop has ``factor`` iterations."""
        self.split(axis, factor, inner_split=False)

    def merge(self, axis_o: int, axis_i: int | None = None) -> None:
        """Merge two neighbouring loops: ``i, j -> i * j``; ``axis_i`` is the next one by default."""
        outer = whole("merge", "axis_o", axis_o)
        self._add("merge", axis_o=outer, axis_i=outer + 1 if axis_i is None else whole("merge", "axis_i", axis_i))

    def reorder(self, order: Mapping[int, int] | Sequence[int]) -> None:
        """Move loops: ``{old position: new position}``, or old positions in their new order."""
        self._add("reorder", order=order_of(order))

    def parallelize(self, axis: int, ptype: Enum) -> None:
        """Let blocks, threads or a vector access run the rounds of a loop (`ParallelType`)."""
        self._add("parallelize", axis=whole("parallelize", "axis", axis), ptype=parallel_type("parallelize", ptype))

    def vectorize(self, axis: int = -1) -> None:
        """Make the innermost loop of a copy one memory access.

        If addresses or extents of a run do not allow that, its kernel uses scalar accesses.
        """
        self.parallelize(axis, ParallelType.vectorize)

    def cache_before(self, op_type: object = None) -> Any:
        """Return a new tensor with this one's computation; this one becomes a copy of it: ``c = f(x); y = set(c)``."""
        check_copy("cache_before", op_type)
        return self._make("cache_before")

    def cache_after(
        self, op_type: object = None, cache_op: object = None, propagate_allocation_domain: bool = True,
        cached_uses: Iterable[Any] = (),
    ) -> Any:
        """Return a new tensor, a copy of this one that its readers read instead: ``c = set(x); y = f(c)``.

        ``cached_uses`` limits the readers to those that compute these tensors.
        """
        check_copy("cache_after", op_type, cache_op)
        flag(propagate_allocation_domain, "cache_after", "propagate_allocation_domain")
        return self._make("cache_after", cached_uses=names("cache_after", cached_uses, self.builder))

    def cache_fork(self) -> Any:
        """Return a new output, a copy of this one, which other tensors read and which is no longer an output."""
        return self._make("cache_fork")

    def set_memory_type(self, memory_type: Enum) -> None:
        """Store an intermediate tensor in memory of the thread (local) or of the block (shared)."""
        self._add("set_memory_type", memory_type=memory("set_memory_type", memory_type))

    def rfactor(self, axes: Iterable[int]) -> Any:
        """Return a new tensor that reduces some of this one's reduction loops; this one reduces the others."""
        return self._make("rfactor", axes=wholes("rfactor", "axes", axes))

    def inline_at(self, pos: int = -1, best_effort: bool = False) -> None:
        """Compute this tensor inside the first ``pos`` loops of its readers; -1 means all."""
        self._add("inline_at", pos=whole("inline_at", "pos", pos),
                  best_effort=flag(best_effort, "inline_at", "best_effort"), selected_tensors=(self.val.name,))

    def inline_most(self) -> None:
        """Compute this tensor inside as many loops of its readers as is legal."""
        self.builder.hand.add("inline_most", "", selected_tensors=(self.val.name,))

    def compute_at(self, consumer: Any, pos: int = -1, mode: str = "standard") -> None:
        """Give this tensor, and those on the path to a consumer, the consumer's loops, and share the first ``pos``.

        ``mode`` is ``"standard"`` or ``"best_effort"``: as many as can be shared.
        """
        reader = schedule_arguments.tensor("compute_at", "consumer", consumer, self.builder)
        self._add("compute_at", consumer=reader.val.name, pos=whole("compute_at", "pos", pos),
                  mode=sharing("compute_at", mode))

    def transform_like(self, selected_tensors: Iterable[Any] = ()) -> None:
        """Give other tensors (by default all) the loops of this one."""
        self._add("transform_like", selected_tensors=names("transform_like", selected_tensors, self.builder))

    def parallelize_like(
        self, pos: int = -1, selected_tensors: Iterable[Any] = (), selected_parallel_types: Iterable[Enum] = (),
    ) -> None:
        """Give matching loops of other tensors the parallel types of this one's first ``pos`` loops."""
        self._add(
            "parallelize_like", pos=whole("parallelize_like", "pos", pos),
            selected_tensors=names("parallelize_like", selected_tensors, self.builder),
            selected_parallel_types=parallel_types("parallelize_like", selected_parallel_types),
        )

    def bounded_transform_backward(
        self, pos: int, to: Iterable[Any], propagate_parallel_type: bool = False,
    ) -> None:
        """Give the tensors on paths from ``to`` to this one its first ``pos`` loops."""
        method = "bounded_transform_backward"
        self._add(
            method, pos=whole(method, "pos", pos), to=names(method, to, self.builder),
            propagate_parallel_type=flag(propagate_parallel_type, method, "propagate_parallel_type"),
        )

    def _raise_unsupported(self, method: str, why: str) -> NoReturn:
        raise UnsupportedError(f"TensorView.{method} {why}.")

    def swizzle(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        self._raise_unsupported("swizzle", _NO_SWIZZLE)

    def swizzle1d(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        self._raise_unsupported("swizzle1d", _NO_SWIZZLE)

    def set_allocation_domain(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        self._raise_unsupported("set_allocation_domain", "is not supported: arrays are stored in the order of loops")

    def set_device_mesh(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        self._raise_unsupported("set_device_mesh", "is not supported: fuser_lab runs on one device")

    def circular_buffer(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        self._raise_unsupported("circular_buffer", "is not supported: Numba has no asynchronous copies to overlap")


class Transforms:
    """A definition's schedule by hand, ``fd.sched``: the transforms as functions of tensors, and their effects."""

    def __init__(self, builder: Owner) -> None:
        self._builder = builder

    @property
    def _hand(self) -> HandSchedule:
        return self._builder.hand

    def _of(self, method: str, handle: Any, name: str = "tensor") -> Any:
        return schedule_arguments.tensor(method, name, handle, self._builder)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms so far; each prints as the call that made it."""
        return self._hand.transforms

    def steps(self) -> Steps:
        """Return each transform with the tensors that it changed, before and after; a table in a notebook."""
        return self._hand.steps()

    def to_python(self) -> str:
        """Return Python code that schedules an equal definition ``fd`` alike; empty if there are no transforms.

        Tensors are variables with their names in IR text; those of the definition are looked up first.
        """
        return self._hand.python_text()

    def undo(self, count: int = 1) -> None:
        """Remove the last transforms from the schedule."""
        self._hand.undo(count)

    def user_schedule_ir(self, tensor_transforms: bool = False) -> str:
        """Return the scheduled fusion as IR text; ``tensor_transforms`` adds each tensor's domains."""
        shows = flag(tensor_transforms, "user_schedule_ir", "tensor_transforms")
        return self._hand.text(tensor_transforms=shows)

    def __str__(self) -> str:
        """Return the scheduled fusion as IR text."""
        return self.user_schedule_ir()

    def to_string(self, tensor: Any) -> str:
        """Return a tensor with its loops as IR text."""
        return self._hand.tensor_text(self._of("to_string", tensor).scheduled.name)

    def tensor(self, name: str) -> Any:
        """Return a tensor of the scheduled fusion by its name in IR text; ScheduleError if there is none."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"tensor: name must be text such as 'T1', given {short_text(name)}.")
        tensors = self._hand.scheduled.tensors
        if name not in tensors:
            msg = f"tensor: {short_text(name)} is not a tensor of the scheduled fusion; there are {', '.join(tensors)}."
            raise ScheduleError(msg)
        return self._builder.wrap(tensors[name].tensor)

    def tensors(self) -> list[Any]:
        """Return all tensors of the scheduled fusion, including copies and partial reductions."""
        return [self._builder.wrap(t.tensor) for t in self._hand.scheduled.tensors.values()]

    def is_reduction(self, tensor: Any) -> bool:
        """Whether a tensor has reduction loops."""
        scheduled: ScheduledTensor = self._of("is_reduction", tensor).scheduled
        return any(axis.is_reduction for axis in scheduled.loop)

    def split(self, tensor: Any, axis: int, factor: int, inner_split: bool = True) -> None:
        """Split one loop into two."""
        self._of("split", tensor).split(axis, factor, inner_split)

    def inner_split(self, tensor: Any, axis: int, factor: int) -> None:
        """Split so that the inner loop has ``factor`` iterations."""
        self._of("inner_split", tensor).inner_split(axis, factor)

    def outer_split(self, tensor: Any, axis: int, factor: int) -> None:
        """Split so that the outer loop has ``factor`` iterations."""
        self._of("outer_split", tensor).outer_split(axis, factor)

    def axis(self, tensor: Any, position: int) -> Any:
        """Return a loop of a tensor, which can be parallelized."""
        return self._of("axis", tensor).axis(position)

    def merge(self, tensor: Any, axis_o: int, axis_i: int | None = None) -> None:
        """Merge two neighbouring loops."""
        self._of("merge", tensor).merge(axis_o, axis_i)

    def reorder(self, tensor: Any, order: Mapping[int, int] | Sequence[int]) -> None:
        """Move loops."""
        self._of("reorder", tensor).reorder(order)

    def parallelize(self, tensor: Any, axis: int, ptype: Enum) -> None:
        """Let blocks, threads or a vector access run the iterations of a loop."""
        self._of("parallelize", tensor).parallelize(axis, ptype)

    def vectorize(self, tensor: Any, axis: int = -1) -> None:
        """Make the innermost loop of a copy one memory access."""
        self._of("vectorize", tensor).vectorize(axis)

    def cache_before(self, tensor: Any, op_type: object = None) -> Any:
        """Return a new tensor, of which the given tensor becomes a copy."""
        return self._of("cache_before", tensor).cache_before(op_type)

    def cache_after(self, tensor: Any, op_type: object = None, cache_op: object = None) -> Any:
        """Return a copy of a tensor for its readers."""
        return self._of("cache_after", tensor).cache_after(op_type, cache_op)

    def cache_fork(self, tensor: Any) -> Any:
        """Return a new output that is a copy of one that other tensors read."""
        return self._of("cache_fork", tensor).cache_fork()

    def set_memory_type(self, tensor: Any, memory_type: Enum) -> None:
        """Store a tensor in local or shared memory."""
        self._of("set_memory_type", tensor).set_memory_type(memory_type)

    def rfactor(self, tensor: Any, axes: Iterable[int]) -> Any:
        """Return a new tensor that reduces some of a tensor's reduction loops."""
        return self._of("rfactor", tensor).rfactor(axes)

    reduction_factor = rfactor

    def compute_at(self, tensor: Any, consumer: Any, pos: int = -1, mode: str = "standard") -> None:
        """Give a tensor, and those on the path to a consumer, the consumer's loops, and share the first ones."""
        self._of("compute_at", tensor).compute_at(consumer, pos, mode)

    def transform_like(self, reference_tv: Any, selected_tensors: Iterable[Any] = ()) -> None:
        """Give other tensors the loops of a reference."""
        self._of("transform_like", reference_tv, "reference_tv").transform_like(selected_tensors)

    def parallelize_like(
        self, reference_tv: Any, pos: int = -1, selected_tensors: Iterable[Any] = (),
        selected_parallel_types: Iterable[Enum] = (), propagate_padding: bool = True,
    ) -> None:
        """Give loops of other tensors the parallel types of a reference."""
        flag(propagate_padding, "parallelize_like", "propagate_padding")
        reference = self._of("parallelize_like", reference_tv, "reference_tv")
        reference.parallelize_like(pos, selected_tensors, selected_parallel_types)

    def bounded_transform_backward(
        self, from_tv: Any, pos: int, to: Iterable[Any], propagate_parallel_type: bool = False,
    ) -> None:
        """Give the tensors on paths from ``to`` to a tensor its first ``pos`` loops."""
        reference = self._of("bounded_transform_backward", from_tv, "from_tv")
        reference.bounded_transform_backward(pos, to, propagate_parallel_type)

    def inline_at(
        self, reference_tv: Any, pos: int = -1, best_effort: bool = False, selected_tensors: Iterable[Any] = (),
    ) -> None:
        """Compute tensors (by default all) inside the loops that match the first ``pos`` loops of a reference."""
        self._hand.add(
            "inline_at", self._of("inline_at", reference_tv, "reference_tv").val.name,
            pos=whole("inline_at", "pos", pos), best_effort=flag(best_effort, "inline_at", "best_effort"),
            selected_tensors=names("inline_at", selected_tensors, self._builder),
        )

    def inline_most(self, selected_tensors: Iterable[Any] = ()) -> None:
        """Compute tensors (by default all) inside as many loops of their readers as is legal."""
        self._hand.add("inline_most", "", selected_tensors=names("inline_most", selected_tensors, self._builder))

    def launch_bounds(self, blocks: int) -> None:
        """Limit the registers of a thread so that this many blocks fit on a multiprocessor; 0 for no limit."""
        self._hand.add("launch_bounds", blocks=whole("launch_bounds", "blocks", blocks))

    def grid(self, blocks: int) -> None:
        """Launch this many blocks, which run several rounds each if the loops over blocks have more."""
        self._hand.add("grid", blocks=whole("grid", "blocks", blocks))

    def cluster(self, blocks: int) -> None:
        """Let this many blocks share each row, or columns that are read in several passes, through shared memory."""
        self._hand.add("cluster", blocks=whole("cluster", "blocks", blocks))

    def read_again(self) -> None:
        """Let each pass over a row read it from memory: nothing keeps the row between passes."""
        self._hand.add("read_again")

    def specialize(self, sizes: bool = True) -> None:
        """Make all sizes constants of the kernel, or, if not ``sizes``, those of its outermost loops arguments."""
        self._hand.add("specialize", sizes=flag(sizes, "specialize", "sizes"))

    def set_params(self, **params: Any) -> None:
        """Set parameters of a segment's kernel that neither loops nor another transform express."""
        self._hand.add("set_params", "", **param_arguments("set_params", params))

    def on_blocks(self, style: str, nest: int = 0, **params: Any) -> None:
        """Give a nest of a segment's kernel on a GPU a form of loops, such as ``"rows"``, with its parameters.

        It stands for all loops of that nest; ``plan.segments[0].schedule`` has the forms and parameters of a segment.
        """
        self._hand.add("on_blocks", "", **template_arguments("on_blocks", style, nest, params))

    def on_cores(self, style: str, nest: int = 0, **params: Any) -> None:
        """Give a nest of a segment's kernel on a CPU a form of loops with its parameters, as `on_blocks` on a GPU."""
        self._hand.add("on_cores", "", **template_arguments("on_cores", style, nest, params))

    def warp_specialize(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedError."""
        msg = "schedule.warp_specialize is not supported: Numba cannot give warps of one block different programs."
        raise UnsupportedError(msg)
