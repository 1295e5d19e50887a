"""What torch's profiler records."""

from collections.abc import Callable
from typing import Any

from tests.needs import needs

torch = needs("torch")


def events_of(call: Callable[[], object], activity: str) -> list[Any]:
    """Return the events of a call: its ops (``"CPU"``), or its kernels and the copies between them (``"CUDA"``).

    Without ``acc_events``, torch 2.10 and 2.11 warn of each use that events of earlier cycles are cleared.
    """
    activities = [getattr(torch.profiler.ProfilerActivity, activity)]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        call()
    return list(profile.events())
