"""Which of several schedules of one kernel is the fastest, from what is known before any of them is compiled.

The logarithm of a candidate's time over that of the heuristics' choice is a difference of two sums: of a few terms, of
their squares and products, with weights for each style of loops. The terms are logarithms of what Hong and Kim (ISCA
2009) call memory and computation warp parallelism, here warps and bytes in flight on a multiprocessor, of the waves of
blocks and how full they are, and of the time that `fuser_lab.cost.kernel_time` predicts. They are relative to a device,
so one set of weights is for all GPUs; it is fitted to measured candidates (`fuser_lab.cost.candidate_fitting`).
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final

import numpy as np

from fuser_lab.cost.device import Device
from fuser_lab.cost.kernel_time import (
    Columns,
    KernelFeatures,
    Numbers,
    Rates,
    busy_times,
    columns,
    kernel_model,
    predicted_seconds,
    resident_blocks,
)
from fuser_lab.json_text import json_text

TERMS: Final = (
    "predicted", "warps", "in_flight", "waves", "uneven", "threads", "rounds", "instructions", "scratch",
)
MARGIN: Final = 1.1
"""How many times as fast a candidate must be predicted for the prediction to be worth more than the heuristics."""

_PAIRS: Final = tuple(combinations_with_replacement(range(len(TERMS)), 2))
_LANES: Final = 32
_COSTLY: Final = 4  # instructions that a division or a function counts as
_MOST: Final = 3.0  # largest predicted logarithm of a ratio: far from measured kernels, squares are no prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateModel:
    """Weights of the terms by style of loops, then of the products of each two; ``source`` says what they are from."""

    weights: Mapping[str, tuple[float, ...]]
    source: str

    def ratios(
        self, chosen: KernelFeatures, candidates: Sequence[KernelFeatures], device: Device, rates: Rates | None = None,
    ) -> Numbers:
        """Return the predicted times of candidates over that of the heuristics' choice.

        Parameters
        ----------
        chosen, candidates
            The kernels; only what is known before they are compiled counts.
        device
            The GPU.
        rates
            Its rates; by default those that the package has.
        """
        rates = kernel_model(device).rates if rates is None else rates
        logs = terms(columns([chosen, *candidates]), rates, device)
        weights = self.weights.get(chosen.style)
        if weights is None:  # too few candidates of this style were measured
            change = logs[1:, 0] - logs[0, 0]
        else:
            change = (products(logs[1:]) - products(logs[:1])) @ np.array(weights)
        ratios: Numbers = np.exp(np.clip(change, -_MOST, _MOST))
        return ratios

    def effects(self, chosen: KernelFeatures, candidate: KernelFeatures, device: Device) -> dict[str, float]:
        """Return by how much each term changes the logarithm of the ratio; together they are its logarithm.

        The change of a product is shared by its factors: ``ab - cd`` is ``(a - c) (b + d) / 2 + (b - d) (a + c) / 2``.
        """
        baseline, other = terms(columns([chosen, candidate]), kernel_model(device).rates, device)
        weights = self.weights.get(chosen.style)
        change, middle = other - baseline, (baseline + other) / 2
        slopes = np.eye(len(TERMS))[0] if weights is None else np.array(weights[: len(TERMS)])
        for place, (a, b) in enumerate(() if weights is None else _PAIRS, len(TERMS)):
            assert weights is not None
            slopes[a] += weights[place] * middle[b]
            slopes[b] += weights[place] * middle[a]
        return dict(zip(TERMS, map(float, slopes * change), strict=True))


def terms(kernels: Columns, rates: Rates, device: Device) -> Numbers:
    """Return the terms of kernels, a row for each, in the order of `TERMS`."""
    uncompiled = {**kernels, **{name: np.zeros_like(kernels[name]) for name in ("registers", "spilled", "resident")}}
    amounts = _amounts(uncompiled, device)
    logarithms = [np.log(predicted_seconds(uncompiled, rates, device)), *(np.log(amounts[name]) for name in TERMS[1:])]
    return np.stack(logarithms, axis=1)


def _amounts(k: Columns, device: Device) -> dict[str, Numbers]:
    """Return what the terms are logarithms of, but for the predicted time; all are positive."""
    blocks, resident = np.maximum(k["blocks"], 1.0), resident_blocks(k, device)
    slots = device.sms * resident
    waves = np.maximum(blocks / slots, 1.0)
    warps = np.minimum(resident, blocks / device.sms) * k["threads"] / _LANES
    rounds = np.maximum(k["rounds"] + k["unrolled"], 1.0)
    each = k["fetched"] / np.maximum(k["warps"], 1.0) / rounds
    work = k["simple"] + k["lines"] + k["shared_accesses"] + _COSTLY * (k["special"] + 2 * k["dividing"])
    return {
        "warps": warps, "in_flight": np.maximum(each * warps, 1.0), "waves": waves,
        "uneven": np.where(blocks > slots, np.ceil(blocks / slots) * slots / blocks, 1.0), "threads": k["threads"],
        "rounds": rounds, "instructions": np.maximum(work, 1.0), "scratch": 1.0 + k["scratch"],
    }


def products(rows: Numbers) -> Numbers:
    """Return terms with the products of each two after them."""
    return np.concatenate([rows, np.stack([rows[:, a] * rows[:, b] for a, b in _PAIRS], axis=1)], axis=1)


# In words


def because(model: CandidateModel, chosen: KernelFeatures, candidate: KernelFeatures, device: Device) -> str:
    """Return what makes a candidate slower or faster than the heuristics' choice, under the model; empty if nothing."""
    effects = model.effects(chosen, candidate, device)
    slower = sum(effects.values()) > 0
    term, effect = max(effects.items(), key=lambda item: item[1] if slower else -item[1])
    if not effect:
        return ""
    kernels = columns([chosen, candidate])
    plain = {**kernels, **{name: np.zeros_like(kernels[name]) for name in ("registers", "spilled", "resident")}}
    if term == "predicted":
        return _part(plain, device, slower=slower)
    before, after = (float(value) for value in _amounts(plain, device)[term])
    match term:
        case "warps":
            return f"{after:.3g} warps on a multiprocessor instead of {before:.3g}"
        case "in_flight":
            return f"{after / 1024:.3g} KiB of loads in flight on a multiprocessor instead of {before / 1024:.3g}"
        case "waves":
            return f"{after:.3g} waves of blocks instead of {before:.3g}"
        case "uneven":
            return f"waves of blocks are {100 / after:.0f} % full instead of {100 / before:.0f} %"
        case "threads":
            return f"blocks of {after:.0f} threads instead of {before:.0f}"
        case "rounds":
            return f"{after:.3g} loads of a warp one after another instead of {before:.3g}"
        case "instructions":
            return f"{after / before:.3g} times the instructions"
        case _:
            return f"{after - 1:.0f} bytes of arrays per thread instead of {before - 1:.0f}"


def _part(kernels: Columns, device: Device, *, slower: bool) -> str:
    """Return which part of the predicted time of two kernels grows or shrinks the most."""
    times = busy_times(kernels, kernel_model(device).rates, device)
    name, pair = max(times.items(), key=lambda item: float(item[1][1] - item[1][0]) * (1 if slower else -1))
    before, after = map(float, pair)
    return f"{after / before:.3g} times the time for {name}" if before > 0 else f"time for {name}"


# The weights of the package


def model_record(model: CandidateModel) -> dict[str, Any]:
    """Return a model as plain data."""
    return {"source": model.source, "terms": list(TERMS), "weights": {s: list(w) for s, w in model.weights.items()}}


def model_from(record: Mapping[str, Any]) -> CandidateModel:
    """Return the model that `model_record` wrote."""
    return CandidateModel(source=record["source"], weights={s: tuple(w) for s, w in record["weights"].items()})


def _place() -> Path:
    return Path(str(files(__package__).joinpath("rates", "candidates.json")))


def keep_record(record: Mapping[str, Any]) -> Path:
    """Store a model in the package, with its agreement with measurements, and return the path."""
    _place().write_text(json_text(record, indent=1) + "\n", encoding="utf-8")
    return _place()


def kept_record() -> dict[str, Any]:
    """Return what `keep_record` stored."""
    record: dict[str, Any] = json.loads(_place().read_text(encoding="utf-8"))
    return record


@functools.cache
def candidate_model() -> CandidateModel:
    """Return the model whose weights the package has."""
    return model_from(kept_record())
