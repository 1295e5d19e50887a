"""Fit the model of a kernel's time to measurements of a GPU: ``python -m tests.fitting FILE``.

FILE is written by ``python -m tests.benchmarks.measure_kernels``. How well the model predicts other kernels is printed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.cost.device import DEVICES
from fuser_lab.cost.kernel_time import KernelModel
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from tests.fitting.kernels import Fit, fitted
from tests.fitting.measurements import load
from tests.fitting.plans import PlanFit, fitted_together, read_plans


def model_record(model: KernelModel) -> Mapping[str, Any]:
    """Return a model as plain data, with the name of its device; `fuser_lab.cost.kernel_time.model_from` reads it."""
    return {**asdict(model), "device": model.device.name}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fitting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="measured kernels of one device; gzipped if the name ends in .gz")
    text = "also fit to plans: a file written by python -m tests.benchmarks.plans_on_gpu"
    parser.add_argument("--plans", type=Path, help=text)
    parser.add_argument("--write", action="store_true", help="store the rates in the package, as those of the device")
    parser.add_argument("--json", action="store_true", help="print the rates as JSON")
    options = parser.parse_args(arguments)
    measured = load(options.file)
    name = measured.facts.get("name", "")
    device = next((device for device in DEVICES if device.name == name), None)
    if device is None:
        msg = (
            f"fit: FILE is of {short_text(name)}; rates can be fitted for "
            f"{', '.join(device.name for device in DEVICES)}."
        )
        raise InputError(msg)
    fit: Fit | PlanFit = (
        fitted(measured.rows, device) if options.plans is None
        else fitted_together(measured.rows, read_plans(options.plans), device)
    )
    record = json_text(model_record(fit.model), indent=1)
    print(record if options.json else fit)
    if options.write:
        place = Path(str(files("fuser_lab.cost").joinpath("rates", f"{device.name}.json")))
        place.write_text(f"{record}\n", encoding="utf-8")
        print(place, file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
