"""The blocks of config.json, each with the defaults that hold where its author wrote nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Generic, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from aenv._util.duration import parse_duration
from aenv._util.quantity import parse_bytes, parse_cpu
from aenv.model.fields import (
    Bytes,
    Count,
    Cpu,
    DurationText,
    Hosts,
    IsolationWord,
    McpRuntimeWord,
    NetworkWord,
    OperatingSystemWord,
    Port,
    Replicas,
    Variables,
)
from aenv.model.problems import Problem, Rejected

Amount = TypeVar("Amount", int, float)


class Bounds(NamedTuple, Generic[Amount]):
    """What a sandbox is promised, and what it may never exceed."""

    request: Amount
    limit: Amount


class Section(BaseModel):
    """An object of config.json: unknown keys are kept, known ones are never converted."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, use_attribute_docstrings=True)


class Artifact(Section):
    """Something that `aenv build` made, such as a container image."""

    id: str = ""
    """Identity of the artifact in the place that holds it; often empty."""
    type: str = Field(examples=["image"])
    """What kind of thing it is; container engines look for `image`."""
    content: str = Field(examples=["registry.example.com/envs/my-env:1.0.0"])
    """Where it is; for an image, the reference to pull."""


class BuildConfig(Section):
    """How the environment becomes a container image."""

    dockerfile: str = "./Dockerfile"
    """Path of the Dockerfile, from the project's folder."""
    context: str = "."
    """Folder sent to the image builder, from the project's folder."""
    image_name: str | None = Field(default=None, examples=["my-env"])
    """Name of the image; the environment's name if not said."""
    image_tag: str | None = Field(default=None, examples=["1.0.0"])
    """Tag of the image; the environment's version if not said."""
    build_policy: str = Field(default="IfNotPresent", examples=["IfNotPresent", "Always"])
    """When to build again: `IfNotPresent` keeps an image that is already there."""


class TestConfig(Section):
    """How the environment is tested."""

    # Named after its key in config.json; pytest must not take it for a group of tests.
    __test__: ClassVar[bool] = False

    script: str = Field(default="", examples=["pytest tests"])
    """Command that tests the environment, run in the project's folder."""


class SandboxConfig(Section):
    """How the server inside the sandbox runs the environment's code."""

    model_config = ConfigDict(alias_generator=to_camel)

    tool_timeout: DurationText | None = None
    """Longest time one tool call may take, such as `90s`; an hour if not said."""
    mcp_runtime: McpRuntimeWord = "core"
    """What speaks MCP: `core` is the built-in server, `official` the `mcp` package of the extra `aenvironment[mcp]`."""

    def tool_timeout_seconds(self) -> float | None:
        """Seconds one tool call may take, or None for no limit."""
        return None if self.tool_timeout is None else parse_duration(self.tool_timeout)


class ServiceConfig(Section):
    """How the environment runs as a service that outlives its callers."""

    model_config = ConfigDict(alias_generator=to_camel)

    replicas: Replicas = 1
    """Copies that run side by side; must be 1 when storage is enabled."""
    port: Port = 8081
    """Port the service answers on."""
    enable_storage: bool = False
    """Whether the service keeps files across restarts."""
    storage_name: str | None = Field(default=None, examples=["my-env"])
    """Name of the storage (a PersistentVolumeClaim in a cluster); the environment's name if not said."""
    storage_size: Bytes = "10Gi"
    """Size of the storage; must be written when storage is enabled, and cannot be changed once it exists."""
    mount_path: str = "/home/admin/data"
    """Where the storage appears inside the sandbox."""

    @model_validator(mode="after")
    def _storage_has_one_writer_and_a_size(self) -> Self:
        if self.enable_storage and (problems := list(self._storage_problems())):
            raise Rejected(problems)
        return self

    def storage_size_bytes(self) -> int:
        """Size of the storage, had it been enabled."""
        return parse_bytes(self.storage_size)

    def _storage_problems(self) -> Iterator[Problem]:
        if self.replicas != 1:
            message = f"is {self.replicas}, but storage has one writer: it must be 1 when enableStorage is true"
            yield Problem("replicas", self.replicas, message, "set replicas to 1, or enableStorage to false")
        if "storage_size" not in self.model_fields_set:
            message = 'is missing: it is required when enableStorage is true, such as "10Gi"'
            yield Problem("storageSize", None, message)


class DeployConfig(Section):
    """What a sandbox of the environment is given and allowed."""

    model_config = ConfigDict(alias_generator=to_camel)

    cpu: Cpu = "1"
    """CPU cores, both promised and allowed."""
    memory: Bytes = "2Gi"
    """Memory, both promised and allowed."""
    os: OperatingSystemWord = "linux"
    """Operating system of the sandbox."""
    ephemeral_storage: Bytes = "5Gi"
    """Disk that is gone with the sandbox, both promised and allowed."""
    environment_variables: Variables = Field(default_factory=dict, examples=[{"LOG_LEVEL": "debug"}])
    """Variables every process in the sandbox sees; names and values are text."""
    ttl: DurationText | None = None
    """How long an instance lives unless its creator asks for less or more; the server's default if not said."""
    image_prefix: str | None = Field(default=None, examples=["registry.example.com/envs"])
    """What the second container's image starts with; the instance's datasource completes it."""
    pod_template: str = Field(default="singleContainer", examples=["singleContainer", "DualContainer"])
    """Which pod template of the cluster a sandbox is made from."""
    resource: str | None = Field(default=None, examples=["autoscale"])
    """How a cluster sizes the pod: `autoscale` applies cpu and memory, else the pod template's own sizes hold."""
    arca_template_id: str | None = Field(default=None, examples=["tpl-1"])
    """Template that the arca engine starts; needed there, ignored elsewhere."""
    network: NetworkWord = "public"
    """What a sandbox may reach: `public` everything, `no-network` nothing, `allowlist` the hosts of networkAllow."""
    network_allow: Hosts = Field(default=(), examples=[["pypi.org", "*.pythonhosted.org:443", "10.0.0.0/8"]])
    """Hosts that a sandbox may reach when network is `allowlist`: names, `*.` names, addresses; each with a port if
    only that one is meant."""
    isolation: IsolationWord | None = None
    """How strongly a sandbox is kept apart from its host: `namespaces`, or `gvisor` for a kernel of its own; the
    engine's default if not said."""
    preload: bool | None = None
    """Whether the code may be imported once, before an instance has its variables, and copied into each sandbox."""
    forkable: bool = False
    """Whether a live instance can be copied, memory and files; its sandbox then keeps the rights which that takes."""
    command: tuple[str, ...] = Field(default=(), strict=False, examples=[["node", "server.js"]])
    """Command that serves instead of the built-in server: it finds its listening socket as descriptor 3, told by
    `LISTEN_FDS`, and answers `GET /health` there."""
    run_as_root: bool = False
    """Whether code sees itself as root; it has root's rights over nothing but its own files."""
    processes: Count = 1024
    """Processes and threads that a sandbox may have at once."""
    open_files: Count = 4096
    """Files that one process may have open."""
    cpu_request: Cpu | None = None
    """CPU promised; `cpu` if not said."""
    cpu_limit: Cpu | None = None
    """CPU never exceeded; `cpu` if not said."""
    memory_request: Bytes | None = None
    """Memory promised; `memory` if not said."""
    memory_limit: Bytes | None = None
    """Memory never exceeded; `memory` if not said."""
    ephemeral_storage_request: Bytes | None = None
    """Disk promised; `ephemeralStorage` if not said."""
    ephemeral_storage_limit: Bytes | None = None
    """Disk never exceeded; `ephemeralStorage` if not said."""
    service: ServiceConfig = Field(default_factory=ServiceConfig)
    """How the environment runs as a service."""
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    """How the server inside the sandbox runs."""

    @model_validator(mode="after")
    def _no_request_exceeds_its_limit(self) -> Self:
        pairs: dict[str, Bounds[int] | Bounds[float]] = {
            "cpu": self.cpu_bounds(),
            "memory": self.memory_bounds(),
            "ephemeralStorage": self.storage_bounds(),
        }
        if problems := [_excess(word, *pair) for word, pair in pairs.items() if pair.request > pair.limit]:
            raise Rejected(problems)
        return self

    def cpu_cores(self) -> float:
        """Cores of `cpu`."""
        return parse_cpu(self.cpu)

    def memory_bytes(self) -> int:
        """Bytes of `memory`."""
        return parse_bytes(self.memory)

    def storage_bytes(self) -> int:
        """Bytes of `ephemeralStorage`."""
        return parse_bytes(self.ephemeral_storage)

    def ttl_seconds(self) -> float | None:
        """Seconds an instance lives, or None where the server's default holds."""
        return None if self.ttl is None else parse_duration(self.ttl)

    def cpu_bounds(self) -> Bounds[float]:
        """Cores promised and allowed."""
        request = self.cpu if self.cpu_request is None else self.cpu_request
        limit = self.cpu if self.cpu_limit is None else self.cpu_limit
        return Bounds(parse_cpu(request), parse_cpu(limit))

    def memory_bounds(self) -> Bounds[int]:
        """Bytes of memory promised and allowed."""
        return _byte_bounds(self.memory_request, self.memory_limit, self.memory)

    def storage_bounds(self) -> Bounds[int]:
        """Bytes of ephemeral storage promised and allowed."""
        return _byte_bounds(self.ephemeral_storage_request, self.ephemeral_storage_limit, self.ephemeral_storage)


def _byte_bounds(request: str | int | None, limit: str | int | None, both: str | int) -> Bounds[int]:
    return Bounds(parse_bytes(both if request is None else request), parse_bytes(both if limit is None else limit))


def _excess(word: str, request: float, limit: float) -> Problem:
    message = f"comes to {request}, more than {word}Limit, which comes to {limit}"
    return Problem(f"{word}Request", request, message, f"where one of the two is not written, {word} stands for it")
