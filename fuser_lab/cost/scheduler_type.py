"""The names of schedulers."""

import enum


class SchedulerType(enum.Enum):
    """nvFuser's schedulers for one GPU, in the order in which they are asked."""

    EXPR_EVAL = "expr_eval"
    NO_OP = "no_op"
    MATMUL = "matmul"
    REDUCTION = "reduction"
    RESIZE = "resize"
    TRANSPOSE = "transpose"
    POINTWISE = "pointwise"
    INNER_PERSISTENT = "inner_persistent"
    OUTER_PERSISTENT = "outer_persistent"
    INNER_OUTER_PERSISTENT = "inner_outer_persistent"
    GREEDY = "greedy"
