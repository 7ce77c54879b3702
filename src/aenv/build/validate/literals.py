"""Checks of texts in config.json that belong to one person: secrets, and paths of their machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from aenv.build.validate.findings import Flaw
from aenv.build.validate.subject import Subject
from aenv.model.problems import Place, spell_path
from aenv.model.spec import CONFIG_FILE

_SHAPES = {
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "an API key": r"\bsk-[A-Za-z0-9_-]{16,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a Slack token": r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "a password": r"(?i)\bpass(?:word|wd)\s*=\s*[^\s$<{]|://[^/\s:@]+:[^/\s:@${<]+@",
}
# Whole words between underscores: MAX_TOKENS and TOKENIZERS_PARALLELISM hold no secret.
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)$", re.IGNORECASE
)
_PLACEHOLDER = re.compile(
    r"(?i)|\$.*|<.*>|\{.*\}|/.*|\*+|x+|(?:change|replace|your|insert)[-_ ]?.*|todo|none|dummy|empty"
)
_MACHINE_PATH = re.compile(r"(?:/home/|/Users/|/root/|[A-Za-z]:[\\/]|\\\\)[^\s:]+")
# The key's whole purpose is to name a folder inside the sandbox.
_INSIDE = "deployConfig.service.mountPath"


class _Text(NamedTuple):
    path: str
    key: str
    text: str


def find_secrets(subject: Subject) -> Iterator[Flaw]:
    """config.secret: the finding shows where it is, never what it is."""
    for path, key, text in _texts(subject):
        if kind := _kind_of_secret(path, key, text):
            yield Flaw(f"{CONFIG_FILE}: {path}", f"looks like {kind}: {text[:4]}... of {len(text)} characters")


def find_machine_paths(subject: Subject) -> Iterator[Flaw]:
    """config.machine_path."""
    inside = subject.spec.deploy.service.mount_path if subject.spec is not None else ""
    for path, _, text in _texts(subject):
        found = _MACHINE_PATH.match(text)
        if found and path != _INSIDE and not text.startswith(inside):
            yield Flaw(f"{CONFIG_FILE}: {path}", f"is {text!r}, a path of one machine")
        elif path.startswith("buildConfig.") and text.startswith("/"):
            yield Flaw(f"{CONFIG_FILE}: {path}", f"is {text!r}, which is not below the project's folder")


def _kind_of_secret(path: str, key: str, text: str) -> str | None:
    for kind, shape in _SHAPES.items():
        if re.search(shape, text):
            return kind
    is_variable = ".environmentVariables" in path
    if is_variable and _SECRET_NAME.search(key) and _PLACEHOLDER.fullmatch(text) is None:
        return "a secret, by its name"
    return None


def _texts(subject: Subject) -> Iterator[_Text]:
    if subject.spec is not None:
        yield from _walk(subject.spec.to_dict(), ())


def _walk(value: object, place: Place) -> Iterator[_Text]:
    if isinstance(value, str):
        yield _Text(spell_path(place), str(place[-1]) if place else "", value)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _walk(member, (*place, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _walk(member, (*place, index))
