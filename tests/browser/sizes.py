"""Plans of all sizes for the explorer: a few ops, a sequence of a model's blocks, a chain of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition

if TYPE_CHECKING:
    from fuser_lab.plan import Plan

OPS_PER_LAYER = 18


def two_norms() -> Plan:
    """Ten ops in three segments: sums of a matrix along its rows and along its columns."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4096, 4096], contiguity=True) for _ in range(2))
        a = fd.ops.exp(x)
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, [1]), [False, True]))
        columns = fd.ops.broadcast(fd.ops.sum(b, [0]), [True, False])
        fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
        fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), [1]))
    return fl.segment(fd)


def joined_sums() -> Plan:
    """A row norm and a product of two column sums of it, which nvFuser's rule ``connected_besides`` keeps apart."""
    with FusionDefinition() as fd:
        a = fd.ops.exp(fd.define_tensor([4096, 4096], contiguity=True))
        normed = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, [1]), [False, True]))
        fd.add_output(normed)
        fd.add_output(fd.ops.mul(fd.ops.sum(normed, [0]), fd.ops.sum(fd.ops.exp(normed), [0])))
    return fl.segment(fd)


def rewritable() -> Plan:
    """Two segments at first, with a tensor that can be recomputed, one that passes in 16 bits, and refusals."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 48], contiguity=True, dtype=DataType.Float)
        y = fd.define_tensor([64, 48], contiguity=True, dtype=DataType.Float)
        a = fd.ops.exp(fd.ops.add(x, y))
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
        c = fd.ops.neg(b)
        fd.add_output(fd.ops.mul(c, fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])))
        fd.add_output(fd.ops.relu(c))
    return fl.segment(fd)


def layers(count: int) -> Plan:
    """A number of blocks of a model: a row norm with a weight, a softmax of columns, and a residual sum."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([512, 1024], contiguity=True)
        weight = fd.define_tensor([1024], contiguity=True)
        epsilon = fd.define_scalar(1e-5)
        for _ in range(count):
            centred = fd.ops.sub(x, fd.ops.broadcast(fd.ops.mean(x, [1]), [False, True]))
            spread = fd.ops.broadcast(fd.ops.mean(fd.ops.mul(centred, centred), [1]), [False, True])
            normed = fd.ops.mul(centred, fd.ops.rsqrt(fd.ops.add(spread, epsilon)))
            e = fd.ops.exp(fd.ops.mul(normed, fd.ops.broadcast(weight, [True, False])))
            x = fd.ops.add(x, fd.ops.div(e, fd.ops.broadcast(fd.ops.sum(e, [0]), [True, False])))
        fd.add_output(x)
    return fl.segment(fd)


def chain(count: int) -> Plan:
    """A number of segments in sequence, of one op each."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([512, 512], contiguity=True)
        for _ in range(count):
            x = fd.ops.sin(x)
        fd.add_output(x)
    return fl.segment(fd, strategy="unfused")
