"""Why a sandbox is no more, told from what the kernel counted and how its first process ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from aenv.engines.protocol import Reason

_SENTENCES: dict[Reason, str] = {
    "oom": "it used more memory than its limit and was killed",
    "disk_full": "it filled its storage and ended",
    "pids": "it had as many processes as it may have and ended",
    "cpu": "it used more processor time than its limit and was killed",
    "stopped": "it was stopped",
    "exited": "it ended by itself",
}


_NAMES = {number.value: number.name for number in signal.Signals}


def as_code(claimed: object) -> int | None:
    """An exit code, or minus a signal's number; None for whatever else a sandbox claims to have ended with."""
    return claimed if isinstance(claimed, int) and -64 <= claimed <= 255 else None


def verdict(code: int | None, breaches: Mapping[str, int], *, is_stopped: bool) -> tuple[Reason, str]:
    """The reason, and a sentence for people."""
    reason = _reason(code, breaches, is_stopped=is_stopped)
    if reason in _SENTENCES:
        return reason, _SENTENCES[reason]
    if code is None:
        return reason, "it was killed, and nobody saw how"
    if code < 0:
        return reason, f"it was ended by {_NAMES.get(-code, f'signal {-code}')}"
    return reason, f"it ended with exit code {code}"


def _reason(code: int | None, breaches: Mapping[str, int], *, is_stopped: bool) -> Reason:
    if is_stopped:
        return "stopped"
    if code == 0:
        return "exited"
    if breaches.get("oom") and code in (None, -signal.SIGKILL):
        return "oom"
    if code == -signal.SIGXCPU:
        return "cpu"
    if breaches.get("disk_full"):
        return "disk_full"
    if breaches.get("pids") and code != -signal.SIGKILL:
        return "pids"
    return "killed" if code in (None, -signal.SIGKILL, -signal.SIGTERM) else "crashed"
