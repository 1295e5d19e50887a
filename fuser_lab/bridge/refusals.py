"""Sentences about what torch, or the user's function, refuses while a model is captured or compiled."""

import re
import traceback
from pathlib import PurePath
from typing import Any

from fuser_lab.bridge.example_inputs import example_inputs
from fuser_lab.bridge.traced import OF_TORCH

_PACKAGE = PurePath(__file__).parents[1]
_GENERATED = re.compile(r"^<|[/\\]c[a-z2-7]{50,}\.py$")  # Inductor's output code is called by a hash
EXPLAINED = re.compile(r"Explanation: (.*)")  # in Dynamo's messages


def _is_users(path: str) -> bool:
    """Whether a file is the user's: not torch's, not this package's, and not code that torch generates."""
    is_generated = _GENERATED.search(path) is not None
    return not is_generated and not OF_TORCH.search(path) and not PurePath(path).is_relative_to(_PACKAGE)


def tracing_error(called: Any, text: str, made_by: str = "from_torch") -> str:
    """Return Dynamo's refusal as one sentence: its explanation, and the innermost line of the user's code."""
    why = re.search(r"got \w+\(['\"](.*)['\"]\)", text) or EXPLAINED.search(text)
    lines = re.findall(r'File "([^"]*)", line (\d+)', text.partition("from user code:")[2])
    user_lines = [(path, line) for path, line in lines if _is_users(path)]
    where = f" at {PurePath(user_lines[-1][0]).name}:{user_lines[-1][1]}" if user_lines else ""
    reasons = [line for line in text.partition("from user code:")[0].splitlines() if line.strip()]
    if len(reasons) > 1 and reasons[0].startswith(("Failed running", "backend=")):  # the second line says why
        del reasons[0]
    advice = "model(*inputs) shows whether it runs in eager mode"
    if hasattr(called, "modules"):
        advice = f"inputs that fit the first layer are, for example, fl.{made_by}(model, {example_inputs(called)})"
    return f"{made_by}: torch does not capture this{where}: {(why[1] if why else reasons[0]).rstrip('.')}; {advice}."


def running_error(called: Any, error: Exception, made_by: str = "from_torch") -> str:
    """Return what a function raised while torch ran it as one sentence, with the user's line."""
    said = first_line(error)
    advice = "model(*inputs) has to run in eager mode"
    if "does not require grad" in said:
        advice = f"fl.{made_by}(model, *inputs, backward=True) records gradients"
    elif hasattr(called, "modules"):
        advice += f"; inputs that fit the first layer are, for example, fl.{made_by}(model, {example_inputs(called)})"
    return f"{made_by}: the function raises {type(error).__name__}{place_of(error)}: {said}; {advice}."


def first_line(error: Exception) -> str:
    """Return the first line of an error's sentence."""
    return str(error).partition("\n")[0].rstrip(".") or "no message"


def place_of(error: Exception) -> str:
    """Return the innermost line of the user's code that raised an error, or an empty text."""
    user_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    last = user_frames[-1] if user_frames else None
    return "" if last is None else f" at {PurePath(last.filename).name}:{last.lineno} ({last.line})"
