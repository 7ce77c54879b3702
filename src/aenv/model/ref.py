"""Names and versions of environments: `EnvRef` is `name@version`, `Version` is a semantic version."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import total_ordering

from aenv._util.nearest import ask
from aenv._util.unreadable import shown
from aenv.errors import RefError

LATEST = "latest"

# A name becomes a host name and a label in a cluster, so it is one DNS label (RFC 1123).
NAME_ALLOWED = 'an environment name such as "my-env" (lower case letters, digits and hyphens, at most 63)'
NAME_PATTERN = "^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$"

# https://semver.org/#is-there-a-suggested-regular-expression-regex-to-check-a-semver-string
VERSION_ALLOWED = 'a version such as "1.0.0" or "1.2.0-rc.1"'
VERSION_PATTERN = (
    r"^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?$"
)
# The longest tag a container registry takes; a version ends up as one.
VERSION_LENGTH = 128

_Identifier = tuple[int, int, str]


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version 2.0.0. Build metadata is printed but never compared: 1.0.0+a and 1.0.0+b are equal."""

    major: int
    minor: int
    patch: int
    prerelease: str = ""
    build: str = field(default="", compare=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read `1.2.3`, `1.2.3-rc.1` or `1.2.3+build`; RefError for anything else."""
        match = re.fullmatch(VERSION_PATTERN, text) if len(text) <= VERSION_LENGTH else None
        if match is None:
            raise RefError(f"{shown(text)} is not {VERSION_ALLOWED}", hint=_version_hint(text), version=text)
        major, minor, patch, prerelease, build = match.groups()
        return cls(int(major), int(minor), int(patch), prerelease or "", build or "")

    def __str__(self) -> str:
        pre = f"-{self.prerelease}" if self.prerelease else ""
        return f"{self.major}.{self.minor}.{self.patch}{pre}" + (f"+{self.build}" if self.build else "")

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return self._rank() < other._rank()

    def _rank(self) -> tuple[int, int, int, bool, tuple[_Identifier, ...]]:
        identifiers = tuple(_rank_identifier(part) for part in self.prerelease.split(".") if part)
        return self.major, self.minor, self.patch, not self.prerelease, identifiers


@dataclass(frozen=True, slots=True)
class EnvRef:
    """Which environment is meant: a name, and a version unless the newest published one will do."""

    name: str
    version: str | None = None

    def __post_init__(self) -> None:
        validate_name(self.name)
        if self.version is not None:
            Version.parse(self.version)

    @classmethod
    def parse(cls, text: str) -> EnvRef:
        """Read `name`, `name@version` or `name@latest`; RefError for anything else."""
        name, at, version = text.partition("@")
        if "@" in version:
            raise RefError(f"{shown(text)} has more than one @", hint='write name@version, such as "my-env@1.0.0"')
        if at and not name:
            raise RefError(f"{shown(text)} has no name before the @", hint='write name@version, such as "my-env@1.0.0"')
        if at and not version:
            raise RefError(
                f"{shown(text)} has no version after the @",
                hint=f'write {shown(name)} for the newest version, or add one such as "1.0.0"',
            )
        return cls(name, version if at and version != LATEST else None)

    @property
    def is_exact(self) -> bool:
        """True when a version is named, so that two readers always mean the same code."""
        return self.version is not None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}@{self.version}"


def validate_name(name: str) -> str:
    """The name itself if it may name an environment, else RefError with the nearest name that may."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise RefError(f"{shown(name)} is not {NAME_ALLOWED}", hint=_name_hint(name), name=name)
    return name


def newest(versions: Iterable[Version]) -> Version:
    """The highest release, or the highest prerelease when nothing was released; ValueError when there is none."""
    ordered = sorted(versions)
    if not ordered:
        raise ValueError("no version to choose from")
    released = [version for version in ordered if not version.prerelease]
    return (released or ordered)[-1]


def _rank_identifier(part: str) -> _Identifier:
    # Numbers rank below words and among themselves by size: https://semver.org/#spec-item-11
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def _name_hint(name: str) -> str:
    letters = unicodedata.normalize("NFKD", name[:128]).encode("ascii", "ignore").decode().lower()
    plain = re.sub(r"[^a-z0-9-]+", "-", letters).strip("-")[:63].strip("-")
    return ask([plain]) if plain else 'choose a name such as "my-env"'


def _version_hint(text: str) -> str:
    if text == LATEST:
        return "leave the version out to mean the newest"
    loose = re.fullmatch(r"\s*[vV=]*([0-9]{1,9}(?:\.[0-9]{1,9}){0,2})([-+]\S*)?\s*", text[:VERSION_LENGTH])
    if loose is None:
        return 'write three numbers, such as "1.0.0"'
    numbers = [str(int(number)) for number in loose[1].split(".")]
    candidate = ".".join([*numbers, "0", "0"][:3]) + (loose[2] or "")
    return ask([candidate if re.fullmatch(VERSION_PATTERN, candidate) else candidate.split(loose[2])[0]])
