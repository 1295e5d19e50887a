"""The table of kernel parameters: what each means, and which nests of loops have it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from fuser_lab.schedule.state import LoopSchedule, Space, Style
from fuser_lab.targets import Form, target_of

Value = int | bool | tuple[int, int]


class NestKind(enum.Enum):
    """The kinds of nests whose parameters differ; those of blocks are on a GPU, those of cores on a CPU."""

    BLOCK_ELEMENTS = enum.auto()
    BLOCK_TILES = enum.auto()
    BLOCK_ROWS = enum.auto()
    BLOCK_COLUMNS = enum.auto()
    BLOCK_ROWS_WITH_COLUMN_SUMS = enum.auto()
    BLOCK_TILE_SUMS = enum.auto()
    BLOCK_KEPT_COLUMNS = enum.auto()
    BLOCK_SCANS = enum.auto()
    CORE_ELEMENTS = enum.auto()
    CORE_TILES = enum.auto()
    CORE_ROWS = enum.auto()
    CORE_COLUMNS = enum.auto()
    CORE_ROWS_WITH_COLUMN_SUMS = enum.auto()
    CORE_SCANNED_ROWS = enum.auto()
    CORE_SCANNED_COLUMNS = enum.auto()


_K = NestKind
_BY_STYLE: Mapping[tuple[Form, Style], NestKind] = {
    (Form.BLOCKS, Style.ELEMENTS): _K.BLOCK_ELEMENTS, (Form.BLOCKS, Style.TILES): _K.BLOCK_TILES,
    (Form.BLOCKS, Style.ROWS): _K.BLOCK_ROWS, (Form.BLOCKS, Style.COLUMNS): _K.BLOCK_COLUMNS,
    (Form.CORES, Style.ELEMENTS): _K.CORE_ELEMENTS, (Form.CORES, Style.TILES): _K.CORE_TILES,
    (Form.CORES, Style.ROWS): _K.CORE_ROWS, (Form.CORES, Style.COLUMNS): _K.CORE_COLUMNS,
}


def kind_of(space: Space, target: str, loops: LoopSchedule) -> NestKind:
    """Return the kind of a nest for which the heuristics choose some loops."""
    form = target_of(target).form
    if space.column_sums:
        return _K.BLOCK_ROWS_WITH_COLUMN_SUMS if form is Form.BLOCKS else _K.CORE_ROWS_WITH_COLUMN_SUMS
    if loops.keeps_columns:
        return _K.BLOCK_KEPT_COLUMNS
    if loops.style is Style.TILES and space.reduces:
        return _K.BLOCK_TILE_SUMS
    if space.scans and form is Form.BLOCKS:
        return _K.BLOCK_SCANS
    if space.scans:
        return _K.CORE_SCANNED_ROWS if loops.style is Style.ROWS else _K.CORE_SCANNED_COLUMNS
    return _BY_STYLE[form, loops.style]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A field of `LoopSchedule` that can be set by hand.

    Attributes
    ----------
    name
        The name of the field.
    meaning
        What the value counts or says.
    nests
        The kinds of nests that have the parameter.
    is_flag
        Whether the value is a bool; otherwise it is a whole number.
    hint
        The transform, and its argument, that shows a value which no loop expresses; by default ``set_params``.
    tried
        Values that `fl.tune` tries, beside the combinations in `suggestions`.
    """

    name: str
    meaning: str
    nests: frozenset[NestKind]
    is_flag: bool = False
    hint: tuple[str, str] | None = None
    tried: tuple[Value, ...] = ()


def _row(
    name: str, meaning: str, *nests: NestKind, is_flag: bool = False, hint: tuple[str, str] | None = None,
) -> Parameter:
    return Parameter(name=name, meaning=meaning, nests=frozenset(nests), is_flag=is_flag, hint=hint)


_BLOCKS = frozenset(kind for kind in _K if kind.name.startswith("BLOCK_"))

PARAMETERS = (
    _row("threads", "threads of a block, in x and y", *_BLOCKS),
    _row(
        "blocks", "blocks of the grid", _K.BLOCK_ELEMENTS, _K.BLOCK_ROWS_WITH_COLUMN_SUMS, hint=("grid", "blocks"),
    ),
    _row("unroll", "steps in flight together", *_BLOCKS - {_K.BLOCK_TILES, _K.BLOCK_TILE_SUMS, _K.BLOCK_KEPT_COLUMNS}),
    _row(
        "tile", "columns, or sides of a tile",
        _K.BLOCK_TILES, _K.BLOCK_TILE_SUMS, _K.CORE_TILES, _K.CORE_COLUMNS, _K.CORE_SCANNED_COLUMNS,
    ),
    _row("vector", "elements of one access", *_BLOCKS - {_K.BLOCK_TILE_SUMS}),
    _row("grain", "rows of one parallel iteration", _K.CORE_ROWS, _K.CORE_ROWS_WITH_COLUMN_SUMS),
    _row(
        "split", "parts of each reduction",
        _K.BLOCK_ROWS, _K.BLOCK_COLUMNS, _K.BLOCK_TILE_SUMS, _K.CORE_ROWS, _K.CORE_COLUMNS,
    ),
    _row("partial", "additions before a subtotal", _K.CORE_ROWS, _K.CORE_COLUMNS),
    _row(
        "cluster", "blocks that share each row through each other's shared memory", _K.BLOCK_ROWS,
        _K.BLOCK_KEPT_COLUMNS, hint=("cluster", "blocks"),
    ),
    _row("persistent", "rows stay on chip between passes", _K.BLOCK_ROWS, is_flag=True),
    _row("shared", "column sums in shared memory, the others in registers", _K.BLOCK_ROWS_WITH_COLUMN_SUMS),
    _row("constants", "values that all rows share are loaded once", _K.BLOCK_ROWS_WITH_COLUMN_SUMS, is_flag=True),
    _row(
        "resident", "blocks per multiprocessor for which registers are limited", _K.BLOCK_ROWS, _K.BLOCK_COLUMNS,
        _K.BLOCK_ROWS_WITH_COLUMN_SUMS, _K.BLOCK_TILE_SUMS, hint=("launch_bounds", "blocks"),
    ),
    _row("parallel", "distributed over cores", *frozenset(_K) - _BLOCKS, is_flag=True),
    _row("specialized", "all sizes are constants of the kernel, not arguments", *_K, is_flag=True),
)
"""All parameters, in the order in which they are shown."""

MEANINGS: Mapping[str, str] = {parameter.name: parameter.meaning for parameter in PARAMETERS}
FLAGS = frozenset(parameter.name for parameter in PARAMETERS if parameter.is_flag)


def parameters_of(kind: NestKind) -> tuple[Parameter, ...]:
    """Return the parameters of a kind of nest."""
    return tuple(parameter for parameter in PARAMETERS if kind in parameter.nests)
