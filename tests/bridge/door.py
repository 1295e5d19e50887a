"""``python -m tests.bridge.door [name ...]`` calls public functions on what users write, and follows each error.

Every call of `fuser_lab.explore`, `report`, `time`, `price` and `explain` with what `tests.bridge.users` and
`tests.bridge.further_users` hold works, or its error names the next call, which is then made and works. The error of a
function that does not run in eager mode either says so.
"""

import contextlib
import io
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuser_lab as fl
from fuser_lab.errors import FuserLabError
from tests.bridge.further_users import USERS
from tests.bridge.users import User
from tests.needs import needs

torch = needs("torch")

CALLS = ("explain", "explore", "report", "time", "price")
_NEXT = re.compile(r"fl\.\w+\(")
_MOST_STEPS = 3  # errors in a row


def options_of(call: str, folder: Path) -> dict[str, Any]:
    """Return keyword arguments that keep a call short."""
    return {
        "time": {"peers": ["eager"], "seconds": 0.0, "progress": False}, "report": {"path": folder / "model.html"},
    }.get(call, {})


def named_call(message: str) -> str | None:
    """Return the first call that an error names, with all its arguments."""
    begin = _NEXT.search(message)
    if begin is None:
        return None
    depth, at = 0, begin.end() - 1
    for place in range(at, len(message)):
        depth += {"(": 1, ")": -1}.get(message[place], 0)
        if not depth:
            return message[begin.start(): place + 1]
    return None


def followed(user: User, call: str, folder: Path) -> list[str]:
    """Return the errors of a call and of those that they name, of which the last worked; or raise the last error."""
    names = {"fl": fl, "torch": torch, "model": user.model, "inputs": user.inputs, **user.names}
    run: Callable[[], Any] = lambda: getattr(fl, call)(  # noqa: E731 - replaced below
        user.model, *user.inputs, **user.keywords, **options_of(call, folder),
    )
    errors: list[str] = []
    for _ in range(_MOST_STEPS):
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = run()
                str(result)
                if hasattr(result, "close"):
                    result.close()
        except FuserLabError as error:
            errors.append(str(error))
            if "call model(*inputs) once" in errors[-1]:
                user.model(*user.inputs)
            following = named_call(str(error))
            if "model(*inputs) has to run in eager mode" in errors[-1] and not runs(user):
                return errors
            if following is None:
                raise
            run = lambda text=following: eval(text, names)  # noqa: E731 - called at once
        else:
            return errors
    msg = f"no call works: {errors}"
    raise AssertionError(msg)


def runs(user: User) -> bool:
    """Whether a user's function runs without this package."""
    try:
        user.model(*user.inputs, **user.keywords)
    except Exception:  # noqa: BLE001 - it raises anything
        return False
    return True


def main(chosen: list[str]) -> int:
    """Print one line for each user and the calls that failed; return their number."""
    warnings.simplefilter("ignore")
    failed = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # calls that errors name write reports here
        for name in chosen or USERS:
            begin = time.process_time()
            words = []
            for call in CALLS:
                user = USERS[name]()
                try:
                    errors = followed(user, call, Path(folder))
                except Exception as error:  # noqa: BLE001 - the command reports every failure
                    failed += 1
                    words.append(f"{call} FAILS: {type(error).__name__}: {error}")
                else:
                    words.append(f"{call}: {errors[-1]}" if errors else call)
            print(f"{name} ({time.process_time() - begin:.1f} s): {'; '.join(words)}", flush=True)
    print(f"{len(chosen or USERS)} users, {failed} calls failed")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
