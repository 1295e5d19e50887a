"""The time of certificates and of the search for the best plan: ``python -m tests.benchmarks.optimal``.

Times are processor seconds, which other work on the machine hardly affects.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.segmentation import verify

TOKENS, WIDTH, HEADS = 4096, 4096, 32
BF16, FLOAT = DataType.BFloat16, DataType.Float


def _float(fd: Any, value: Any) -> Any:
    return fd.ops.cast(value, dtype=FLOAT)


def _narrow(fd: Any, value: Any) -> Any:
    return fd.ops.cast(value, dtype=BF16)


def _rms_norm(fd: Any, x: Any) -> Any:
    """Return the bf16 normalized rows of a bf16 tensor."""
    weight = fd.define_tensor([WIDTH], contiguity=True, dtype=BF16)
    wide = _float(fd, x)
    mean = fd.ops.mul(fd.ops.sum(fd.ops.mul(wide, wide), dims=[1], keepdim=True), 1 / WIDTH)
    scaled = fd.ops.mul(wide, fd.ops.rsqrt(fd.ops.add(mean, 1e-5)))
    placed = fd.ops.broadcast_in_dim(weight, shape=[TOKENS, WIDTH], broadcast_dims=[1])
    return _narrow(fd, fd.ops.mul(scaled, _float(fd, placed)))


def _attention(fd: Any, x: Any) -> Any:
    """Return attention over [heads, tokens, depth] with an explicit softmax."""
    depth = WIDTH // HEADS

    def heads(value: Any) -> Any:
        return fd.ops.permute(fd.ops.reshape(value, [TOKENS, HEADS, depth]), [1, 0, 2])

    weights = [fd.define_tensor([WIDTH, WIDTH], contiguity=True, dtype=BF16) for _ in range(4)]
    q, k, v = (heads(fd.ops.linear(x, w)) for w in weights[:3])
    scores = fd.ops.mul(_float(fd, fd.ops.matmul(q, fd.ops.permute(k, [0, 2, 1]))), depth**-0.5)
    power = fd.ops.exp(fd.ops.sub(scores, fd.ops.max(scores, dims=[2], keepdim=True)))
    shares = _narrow(fd, fd.ops.truediv(power, fd.ops.sum(power, dims=[2], keepdim=True)))
    mixed = fd.ops.reshape(fd.ops.permute(fd.ops.matmul(shares, v), [1, 0, 2]), [TOKENS, WIDTH])
    return fd.ops.linear(mixed, weights[3])


def _feed_forward(fd: Any, x: Any) -> Any:
    up, gate, down = (fd.define_tensor([WIDTH, WIDTH], contiguity=True, dtype=BF16) for _ in range(3))
    a, b = _float(fd, fd.ops.linear(x, gate)), _float(fd, fd.ops.linear(x, up))
    activated = fd.ops.mul(a, fd.ops.reciprocal(fd.ops.add(fd.ops.exp(fd.ops.neg(a)), 1.0)))
    return fd.ops.linear(_narrow(fd, fd.ops.mul(activated, b)), down)


def transformer(layers: int) -> FusionDefinition:
    """Return decoder layers with attention, RMS norms and SwiGLU: 71 expressions each."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([TOKENS, WIDTH], contiguity=True, dtype=BF16)
        for _ in range(layers):
            for block in (_attention, _feed_forward):
                made = block(fd, _rms_norm(fd, x))
                x = _narrow(fd, fd.ops.add(_float(fd, x), _float(fd, made)))
        fd.add_output(x)
    return fd


def irregular(seed: int, ops: int, rows: int = 4096, columns: int = 4096) -> FusionDefinition:
    """Return a random graph of pointwise ops, reductions of rows and of columns, and broadcasts of their results."""
    rng = random.Random(seed)
    with FusionDefinition() as fd:
        full = [fd.define_tensor([rows, columns], contiguity=True, dtype=FLOAT) for _ in range(2)]
        used: set[int] = set()

        def pick() -> Any:
            i = max(rng.randrange(len(full)), rng.randrange(len(full)))
            used.add(i)
            return full[i]

        count = 0
        while count < ops:
            kind = rng.random()
            if kind < 0.45:
                full.append(fd.ops.add(pick(), pick()))
                count += 1
            elif kind < 0.7 or count + 3 > ops:
                full.append(rng.choice([fd.ops.exp, fd.ops.neg, fd.ops.tanh])(pick()))
                count += 1
            else:
                axis = rng.randrange(2)
                x = pick()
                total = fd.ops.sum(x, dims=[axis])
                placed = fd.ops.broadcast(total, [a == axis for a in range(2)])
                full.append(fd.ops.mul(pick(), placed))
                count += 3
        for i, value in enumerate(full[2:], 2):
            if i not in used:
                fd.add_output(value)
    return fd


def _measured(name: str, fd: FusionDefinition, row: Callable[..., None]) -> None:
    start = time.process_time()
    plan = fl.segment(fd, strategy="bottom_up")
    segmented = time.process_time() - start
    start = time.process_time()
    certificate = plan.certificate()
    certified = time.process_time() - start
    start = time.process_time()
    best = fl.segment(fd, strategy="optimal")
    searched = time.process_time() - start
    proof = best.certificate()
    start = time.process_time()
    told = verify(proof, best.segmented, best.oracle, seconds=10)
    checked = time.process_time() - start
    word = "holds" if told.holds else "unchecked" if not told.problems else "WRONG"
    row(
        name, len(plan.fusion.tensor_exprs), len(plan.segments), f"{segmented:.2f}", certificate.status,
        f"{certified:.2f}", len(best.segments), proof.status, f"{searched:.2f}", word, f"{checked:.2f}",
    )


def main() -> None:
    """Print the table."""
    widths = (24, 5, 8, 9, 34, 9, 8, 34, 9, 9, 8)

    def row(*cells: object) -> None:
        print("  ".join(f"{cell!s:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)

    row(
        "fusion", "exprs", "segments", "seconds", "certificate of bottom-up", "seconds", "optimal", "its certificate",
        "seconds", "checker", "seconds",
    )
    for layers in (1, 2, 4):
        _measured(f"transformer, {layers} layers", transformer(layers), row)
    for seed in range(6):
        _measured(f"irregular 25, seed {seed}", irregular(seed, 25), row)
    for seed in range(2):
        _measured(f"small irregular 25, {seed}", irregular(seed, 25, 64, 64), row)
    for seed in range(2):
        _measured(f"irregular 200, seed {seed}", irregular(seed, 200), row)


if __name__ == "__main__":
    main()
