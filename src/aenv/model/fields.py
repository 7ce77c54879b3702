"""The kinds of value that config.json takes, each checked once and described once."""

from __future__ import annotations

import contextlib
import re
from ipaddress import ip_network
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from aenv._util import duration, quantity
from aenv._util.nearest import ask, did_you_mean
from aenv._util.unreadable import Unreadable
from aenv.errors import RefError
from aenv.model import ref
from aenv.model.problems import Problem, Rejected

Status = Literal["Init", "Pending", "Creating", "Created", "Testing", "Verified", "Ready", "Released", "Failed"]
Network = Literal["public", "no-network", "allowlist"]
McpRuntime = Literal["core", "official"]
Isolation = Literal["namespaces", "gvisor"]
OperatingSystem = Literal["linux"]

_LABEL = "[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?"
_HOST_ALLOWED = 'a host such as "pypi.org", "*.pypi.org" or "pypi.org:443", nor an address such as "10.0.0.0/8"'
_LONGEST_HOST = 253

# Nobody means two bytes by "2": below this a unit was forgotten.
_LEAST_BYTES = 2**20


def _one_of(words: object) -> BeforeValidator:
    allowed: tuple[str, ...] = get_args(words)

    def check(value: object) -> object:
        if value not in allowed:
            hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
            raise Unreadable(value, f"one of {', '.join(allowed)}", hint)
        return value

    return BeforeValidator(check)


def _settle_case(value: object) -> object:
    written = value.casefold() if isinstance(value, str) else value
    return next((status for status in get_args(Status) if status.casefold() == written), value)


def _check_name(value: object) -> object:
    try:
        return ref.validate_name(value if isinstance(value, str) else "")
    except RefError as error:
        raise Unreadable(value, ref.NAME_ALLOWED, error.hint or "") from error


def _check_version(value: object) -> object:
    try:
        # 1.0 without quotes is a number, and what it was meant to be is as clear as for "1.0".
        ref.Version.parse(value if isinstance(value, str) else str(value)[: ref.VERSION_LENGTH])
    except RefError as error:
        raise Unreadable(value, ref.VERSION_ALLOWED, error.hint or "") from error
    return value


def _check_cpu(value: object) -> object:
    if not isinstance(value, str | int | float):
        raise Unreadable(value, quantity.ALLOWED_CPU)
    quantity.parse_cpu(value)
    return value


def _check_bytes(value: object) -> object:
    if not isinstance(value, str | int):
        raise Unreadable(value, quantity.ALLOWED_BYTES)
    if quantity.parse_bytes(value) < _LEAST_BYTES:
        raise Unreadable(value, 'at least "1Mi"', ask([f"{value}Mi", f"{value}Gi"]) if str(value).isdigit() else "")
    return value


def _check_duration(value: object) -> object:
    if not isinstance(value, str):
        raise Unreadable(value, duration.ALLOWED)
    if duration.parse_duration(value) == 0:
        raise Unreadable(value, "longer than zero")
    return value


def _check_port(value: int) -> int:
    if not 1 <= value <= 65535:
        raise Unreadable(value, "a port from 1 to 65535")
    return value


def _check_replicas(value: int) -> int:
    if value < 1:
        raise Unreadable(value, "at least 1")
    return value


def _check_variables(variables: dict[str, str]) -> dict[str, str]:
    # What execve(2) cannot carry would fail when the sandbox starts, far from the line that is wrong.
    wrong = [
        Problem(name, value, "cannot be handed to a process: a name has no '=', and neither part has a NUL")
        for name, value in variables.items()
        if not name or "=" in name or "\0" in name + value
    ]
    if wrong:
        raise Rejected(wrong)
    return variables


def _check_count(value: int) -> int:
    if value < 1:
        raise Unreadable(value, "a whole number from 1 on")
    return value


def _check_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    wrong = [
        Problem(str(place), host, f"is not {_HOST_ALLOWED}") for place, host in enumerate(hosts) if not _is_host(host)
    ]
    if wrong:
        raise Rejected(wrong)
    return hosts


def _is_host(text: str) -> bool:
    with contextlib.suppress(ValueError):
        ip_network(text, strict=False)
        return True
    return len(text) <= _LONGEST_HOST and re.fullmatch(_HOST, text) is not None


Name = Annotated[
    str,
    PlainValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": ref.NAME_PATTERN, "examples": ["my-env"]}),
]
VersionText = Annotated[
    str,
    PlainValidator(_check_version),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": ref.VERSION_PATTERN,
            "maxLength": ref.VERSION_LENGTH,
            "examples": ["1.0.0", "1.2.0-rc.1"],
        }
    ),
]
StatusWord = Annotated[Status, _one_of(Status), BeforeValidator(_settle_case)]
NetworkWord = Annotated[Network, _one_of(Network)]
IsolationWord = Annotated[Isolation, _one_of(Isolation)]
McpRuntimeWord = Annotated[McpRuntime, _one_of(McpRuntime)]
OperatingSystemWord = Annotated[OperatingSystem, _one_of(OperatingSystem)]
Cpu = Annotated[
    str | float,
    PlainValidator(_check_cpu),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "pattern": quantity.CPU_PATTERN,
            "minimum": 0.001,
            "examples": ["1", "500m", "2"],
        }
    ),
]
Bytes = Annotated[
    str | int,
    PlainValidator(_check_bytes),
    WithJsonSchema(
        {
            "type": ["string", "integer"],
            "pattern": quantity.BYTES_PATTERN,
            "minimum": _LEAST_BYTES,
            "examples": ["2Gi", "512Mi", "2G"],
        }
    ),
]
DurationText = Annotated[
    str,
    PlainValidator(_check_duration),
    WithJsonSchema({"type": "string", "pattern": duration.PATTERN, "examples": ["90s", "30m", "1h30m"]}),
]
Port = Annotated[int, AfterValidator(_check_port), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 65535})]
Count = Annotated[int, AfterValidator(_check_count), WithJsonSchema({"type": "integer", "minimum": 1})]
Hosts = Annotated[tuple[str, ...], Field(strict=False), AfterValidator(_check_hosts)]
Replicas = Annotated[int, AfterValidator(_check_replicas), WithJsonSchema({"type": "integer", "minimum": 1})]
Variables = Annotated[dict[str, str], AfterValidator(_check_variables)]
