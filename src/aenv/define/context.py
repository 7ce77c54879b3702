"""What a running call may know about itself and say to its caller while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Literal

from aenv.errors import AEnvError, ToolCancelled

Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
Notify = Callable[[str, dict[str, object]], None]


class MissingCapability(AEnvError):
    """The tool needs something of its client that the client did not declare."""

    code, status = "client.capability_missing", 400

    def __init__(self, capability: str) -> None:
        super().__init__(
            f"this tool needs a client that declares the capability {capability!r}",
            hint=f"connect with a client that supports {capability}",
            capability=capability,
        )


def _say_nothing(method: str, params: dict[str, object]) -> None:
    """Outside a server nobody listens, so that author code can be called as plain Python in tests."""


class Context:
    """One call: its id, its caller's declared capabilities, progress and log messages, cancellation.

    Injected into a parameter annotated `Context` (which stays out of the tool's schema), or had from `get_context()`.
    Safe to use from any thread.
    """

    def __init__(
        self,
        call_id: str = "",
        name: str = "",
        *,
        notify: Notify = _say_nothing,
        capabilities: Mapping[str, object] | None = None,
    ) -> None:
        self.call_id = call_id
        self.name = name
        self.is_cancelled = False
        self._notify = notify
        self._capabilities = capabilities or {}

    def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the caller how far this call is; silent when the caller did not ask for it."""
        params: dict[str, object] = {"progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        self._notify("notifications/progress", params)

    def log(self, level: Level, data: object, *, logger: str | None = None) -> None:
        """Send a log message to the caller, who decides from which level on it is shown."""
        params: dict[str, object] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        self._notify("notifications/message", params)

    def debug(self, data: object) -> None:
        """`log("debug", data)`."""
        self.log("debug", data)

    def info(self, data: object) -> None:
        """`log("info", data)`."""
        self.log("info", data)

    def warning(self, data: object) -> None:
        """`log("warning", data)`."""
        self.log("warning", data)

    def error(self, data: object) -> None:
        """`log("error", data)`."""
        self.log("error", data)

    def raise_if_cancelled(self) -> None:
        """End a long loop in a sync tool once its caller has given up: a thread cannot be stopped from outside."""
        if self.is_cancelled:
            raise ToolCancelled(f"the caller cancelled this call of {self.name!r}")

    def require_capability(self, capability: str) -> None:
        """Refuse the call, as MCP asks, unless the client declared `capability` (for example "sampling")."""
        if capability not in self._capabilities:
            raise MissingCapability(capability)


current_context: ContextVar[Context] = ContextVar("aenv_call")


def get_context() -> Context:
    """The call that is running now; outside of one, a context nobody listens to."""
    return current_context.get(None) or Context()
