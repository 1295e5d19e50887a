"""What the blocks of a cluster that share rows on a GPU exchange: results of reductions, in shared memory."""

from collections.abc import Sequence
from contextlib import ExitStack

from fuser_lab.codegen.gpu_common import GpuReductions
from fuser_lab.codegen.index_math import simplify
from fuser_lab.codegen.kernel_ir import Alloc, Await, Barrier, Buffer, Load, Role, Scope, Send
from fuser_lab.codegen.nest_lowering import Fold, base_name
from fuser_lab.codegen.online import finite, scale
from fuser_lab.cost.device import WARP
from fuser_lab.ir import Expr
from fuser_lab.ir.term import Term, index


class ClusterRows(GpuReductions):
    """Writes exchanges between the blocks of a cluster."""

    _rank: Term = index(0)  # number of the block in its cluster
    _waits = False  # whether other blocks of the cluster may not have started yet

    def _share(self, folds: Sequence[Fold], scope: Scope) -> None:
        if scope is Scope.CLUSTER:
            self._wait_for_cluster()
        super()._share(folds, scope)

    def _wait_for_cluster(self) -> None:
        """Wait until all blocks of the cluster have started, so that their shared memory can be written."""
        if self._waits:
            self._values.emit(Barrier(scope=Scope.CLUSTER))
        self._waits = False

    def _meet_in_cluster(self, pair: Sequence[Expr], folds: Sequence[Fold]) -> list[Fold]:
        """Combine the maxima and the sums relative to them of all warps of a cluster, which each send both at once."""
        values, lanes, cluster = self._values, self.schedule.threads[0], self.schedule.cluster
        assert self._lane is not None
        warps = lanes // WARP
        count = warps * cluster
        met = [
            Buffer(name=values.fresh(f"{base_name(fold)}_warps"), dtype=fold.total.dtype, size=count, role=Role.SHARED)
            for fold in folds
        ]
        for fold, buffer in zip(folds, met, strict=True):
            values.emit(Alloc(buffer=buffer, origin=fold.expr.name))
        self._wait_for_cluster()
        peer = self._remainder(self._lane, WARP)
        with values.guard(peer < cluster):
            at = simplify(self._rank * warps + self._quotient(self._lane, WARP), values.scope.ranges)
            for fold, buffer in zip(folds, met, strict=True):
                values.emit(Send(buffer=buffer, position=at, value=fold.total, rank=peer, origin=fold.expr.name))
        for fold, buffer in zip(folds, met, strict=True):
            values.emit(Await(buffer=buffer, origin=fold.expr.name))
        largest, total = combined = self._open(pair)
        rounds = -(-count // WARP)
        for fold in combined:
            with ExitStack() as stack:
                step = self._round(stack, "step", rounds)
                warp = self._bound(stack, "warp", step * WARP + peer, count, rounds * WARP)
                value: Term = Load(met[0].dtype, met[0], warp)
                if fold is total:
                    value = Load(met[1].dtype, met[1], warp) * scale(value, finite(largest.total))
                self._update(fold, value)
            self._share([fold], Scope.WARP)
        return combined
