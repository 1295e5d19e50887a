"""Changes of the parameters of a nest that are worth measuring."""

from fuser_lab.schedule.parameter_values import Values, with_values
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import PARAMETERS, Style, Value
from fuser_lab.targets import target_of


def suggestions(choice: NestChoice) -> tuple[Values, ...]:
    """Return legal changes of a choice that are worth measuring; `tune` searches these."""
    schedule = choice.schedule
    changes: dict[Values, None] = {}
    tried = [{parameter.name: v} for parameter in PARAMETERS if parameter.name in choice.names for v in parameter.tried]
    for values in (*_grid(choice), *tried):
        change = tuple(sorted((name, v) for name, v in values.items() if v != getattr(schedule, name)))
        _, problem = with_values(choice.space, choice.target, choice.chosen, change)
        if change and not problem:
            changes[change] = None
    return tuple(changes)


def _grid(choice: NestChoice) -> list[dict[str, Value]]:
    space, names, now = choice.space, choice.names, choice.schedule
    y = now.threads[1]
    grid: list[dict[str, Value]] = [{"specialized": True}]
    if target_of(choice.target).has_blocks:
        threads = [(n, y) for n in (32, 64, 128, 256, 512, 1024)]
        if now.style is Style.COLUMNS or y > 1:
            threads = [(a, b) for a in (8, 16, 32) for b in (1, 2, 4, 8, 16, 32)]
        vectors = [n for n in (1, 2, 4, 8, 16) if n <= space.vector]
        unrolls = sorted({1, 2, 4, 8, now.unroll})
        if "unroll" not in names:
            unrolls = [now.unroll]
        grid += [{"threads": t, "unroll": u} if "unroll" in names else {"threads": t} for t in threads for u in unrolls]
        grid += [{"vector": v} for v in vectors]
        grid += [{"threads": t, "vector": v} for t in threads for v in vectors[-2:]]
        sms = space.device.sms
        splits = (1, 2, 4, 8, 16, 32, 64, sms, 2 * sms, 4 * sms) if "split" in names else ()
        grid += [{"split": n} for n in splits]
        clusters = [n for n in (1, 2, 4, 8, 16) if n <= space.device.largest_cluster and "cluster" in names]
        grid += [{"cluster": n} for n in clusters if n > 1 or now.cluster > 1]
        grid += [{"cluster": n, "threads": t} for n in clusters if now.cluster > 1 for t in threads[2:]]
        grid += [{"resident": n} for n in (0, 1, 2, 3, 4, 8) if "resident" in names]
        grid += [{"tile": n} for n in (16, 32, 64) if "tile" in names]
        grid += [{"blocks": n * sms} for n in (1, 2, 4, 8, 16) if "blocks" in names]
        grid += [{"shared": n} for n in range(len(space.column_sums) + 1) if "shared" in names]
        grid += [{"constants": flag} for flag in (False, True) if "constants" in names]
        return [{name: v for name, v in values.items() if name in names} for values in grid]
    grid += [{"parallel": flag} for flag in (True, False) if "parallel" in names]
    grid += [{"grain": n} for n in (1, 2, 4, 8, 16, 32, 64, 128) if "grain" in names]
    grid += [{"tile": n} for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if "tile" in names]
    grid += [{"split": n} for n in (1, 2, 4, 8, 16, 32, 64) if "split" in names]
    grid += [{"partial": n} for n in (64, 256, 1024, 4096, 16384) if "partial" in names]
    return grid
