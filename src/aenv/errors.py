"""Every error of the house: class, code, HTTP status, exit code, hint.

AEnvError
├── ConfigError            config.json or a setting says something that cannot be
├── RefError               not a `name@version`
├── ProjectError           a project folder cannot be read, written or scaffolded
├── DefinitionError        a decorated function cannot become a tool, reward, function or health check
├── LoadError              the author's code does not import
├── AddressError           a host, port or socket cannot be listened on
├── RequestError           the caller's request cannot be served as it is
│   ├── NotFound           no such tool, reward, function or path
│   ├── MethodNotAllowed
│   ├── ArgumentsInvalid   the arguments do not fit the schema
│   ├── PayloadTooLarge
│   ├── CallConflict       one call id, two different calls
│   └── CallForgotten      the call ran, its result is no longer held
├── EngineError            a sandbox cannot be started, reached or copied
│   ├── EngineUnavailable  this machine does not give what the engine needs
│   ├── EngineLost         the engine's own process ended under the request
│   ├── SandboxFailed      the sandbox did not come up
│   │   └── SandboxTimedOut  it did not answer in time
│   ├── PythonFailed       its Python environment cannot be made
│   ├── SandboxGone        it has ended, or never was
│   ├── ForkRefused        its state cannot be copied now
│   └── ExecTimedOut       a command in it took longer than allowed
└── ToolError              the author's function ran and did not give a result
    ├── ToolFailed         it raised
    ├── ToolTimedOut       it took longer than allowed
    ├── ToolCancelled      its caller gave it up
    └── ResultInvalid      it returned what JSON cannot carry or its annotation forbids
"""

from __future__ import annotations

from typing import ClassVar


class AEnvError(Exception):
    """Whatever `aenv` refuses or cannot do: a sentence, a hint and a code that programs may rely on."""

    code: ClassVar[str] = "aenv.error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def to_wire(self) -> dict[str, object]:
        """The error as the members of an error envelope; `error` stays a plain sentence for older clients."""
        wire: dict[str, object] = {"error": self.message, "code": self.code, "retryable": self.retryable}
        if self.hint is not None:
            wire["hint"] = self.hint
        if self.details:
            wire["details"] = self.details
        return wire


class ConfigError(AEnvError):
    """A configuration file or setting says something that cannot be."""

    code, status, exit_code = "config.invalid", 422, 3


class RefError(AEnvError):
    """A text that should name an environment does not."""

    code, status, exit_code = "ref.invalid", 400, 2


class ProjectError(AEnvError):
    """A project folder cannot be read, written or created."""

    code, status, exit_code = "project.invalid", 422, 1


class DefinitionError(AEnvError, ValueError):
    """A decorated function cannot become what its decorator says."""

    code, status = "define.invalid", 422


class LoadError(AEnvError):
    """The author's code does not import; `details["traceback"]` holds their own frames."""

    code, status = "load.failed", 422


class AddressError(AEnvError):
    """A host, port or socket path cannot be listened on."""

    code, status = "address.unusable", 500


class RequestError(AEnvError):
    """The caller's request cannot be served as it is."""

    code, status = "request.invalid", 400


class NotFound(RequestError):
    """Nothing of that name or at that path."""

    code, status, exit_code = "request.not_found", 404, 4


class MethodNotAllowed(RequestError):
    """The path exists, the method does not; `details["allow"]` lists those that do."""

    code, status = "request.method_not_allowed", 405


class ArgumentsInvalid(RequestError):
    """The arguments do not fit the schema; `details["fields"]` names each."""

    code, status = "arguments.invalid", 422


class PayloadTooLarge(RequestError):
    """The request body is larger than this server takes."""

    code, status = "request.too_large", 413


class CallConflict(RequestError):
    """The call id was used before, for another call."""

    code, status = "call.conflict", 409


class CallForgotten(RequestError):
    """The call ran to its end, but its result is no longer held; it is not run again."""

    code, status = "call.forgotten", 410


class EngineError(AEnvError):
    """A sandbox cannot be started, reached or copied."""

    code = "engine.error"


class EngineUnavailable(EngineError):
    """This machine, or its configuration, does not give what the engine needs."""

    code, status, exit_code = "engine.unavailable", 503, 3


class EngineLost(EngineError):
    """The engine's own process ended under the request; the next one starts it anew."""

    code, status, retryable = "engine.lost", 503, True


class SandboxFailed(EngineError):
    """The sandbox did not come up; `details` hold the reason, the log's tail and, for author code, its traceback."""

    code, status = "engine.start_failed", 422


class SandboxTimedOut(SandboxFailed):
    """The sandbox did not answer in time."""

    code, status = "engine.start_timed_out", 504


class PythonFailed(EngineError):
    """The Python environment of requirements.txt cannot be made; `details["output"]` holds the installer's words."""

    code, status = "engine.python_failed", 422


class SandboxGone(EngineError):
    """The sandbox has ended, or never was; `details` hold the reason and the log's tail."""

    code, status, exit_code = "engine.sandbox_gone", 410, 4


class ForkRefused(EngineError):
    """The sandbox's state cannot be copied; `details["obstacles"]` lists what stands in the way."""

    code, status, exit_code = "engine.fork_refused", 409, 5


class ExecTimedOut(EngineError):
    """A command in the sandbox took longer than allowed, and was killed."""

    code, status = "engine.exec_timed_out", 504


class ToolError(AEnvError):
    """The author's function ran and did not give a result."""

    code = "tool.error"


class ToolFailed(ToolError):
    """The author's function raised."""

    code = "tool.failed"


class ToolTimedOut(ToolError):
    """The author's function took longer than allowed."""

    code, status = "tool.timed_out", 504


class ToolCancelled(ToolError):
    """The caller gave the call up before it ended."""

    code, status = "tool.cancelled", 499


class ResultInvalid(ToolError):
    """The author's function returned what JSON cannot carry, or what its annotation forbids."""

    code = "tool.result_invalid"
