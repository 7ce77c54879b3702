"""What is wrong with a configuration, all of it at once and in our words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aenv._util.unreadable import Unreadable, shown
from aenv.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

Place = tuple[str | int, ...]

_NEEDED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}


class Problem(NamedTuple):
    """One thing to correct: `path` and `message` make the sentence, `hint` is what was probably meant."""

    path: str
    value: object
    message: str
    hint: str | None = None

    @property
    def sentence(self) -> str:
        """`deployConfig.cpu is '1 core', which is not ...`."""
        return f"{self.path or 'the top level'} {self.message}"

    def to_dict(self) -> dict[str, object]:
        """The members that programs read from `ConfigError.details["problems"]`."""
        return {"path": self.path, "value": self.value, "message": self.message, "hint": self.hint}


class Rejected(ValueError):
    """A rule over the keys of one object is broken; each problem's path is a bare key of that object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.sentence for problem in problems))
        self.problems = tuple(problems)


def wrong_value(path: str, value: object, allowed: str, hint: str | None = None) -> Problem:
    """The problem of a value that is not what the key takes."""
    return Problem(path, value, f"is {shown(value)}, which is not {allowed}", hint or None)


def spell_path(place: Place) -> str:
    """`deployConfig.service.port`, `tags[0]`; a key that is no plain word stands quoted in brackets."""
    path = ""
    for step in place:
        if isinstance(step, int) or re.fullmatch(r"[\w$-]+", step, re.ASCII) is None:
            path += f"[{step!r}]"
        else:
            path += f".{step}" if path else step
    return path


def list_problems(error: ValidationError) -> list[Problem]:
    """Every problem that pydantic found, without a word of pydantic's."""
    return [problem for details in error.errors(include_url=False) for problem in _translate(details)]


def config_error(where: str, problems: Sequence[Problem]) -> ConfigError:
    """One problem is one sentence; several are a count and a line each."""
    members = [problem.to_dict() for problem in problems]
    if len(problems) == 1:
        return ConfigError(f"{where}: {problems[0].sentence}", hint=problems[0].hint, problems=members)
    lines = [f"  {problem.sentence}" + (f" ({problem.hint})" if problem.hint else "") for problem in problems]
    return ConfigError("\n".join([f"{where}: {len(problems)} problems", *lines]), problems=members)


def _translate(details: ErrorDetails) -> Iterator[Problem]:
    place, value, kind = details["loc"], details["input"], details["type"]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, Rejected):
        for problem in cause.problems:
            yield problem._replace(path=spell_path((*place, problem.path)))
    elif isinstance(cause, Unreadable):
        yield wrong_value(spell_path(place), value, cause.allowed, cause.hint)
    elif kind == "missing":
        yield Problem(spell_path(place), None, "is missing")
    else:
        yield wrong_value(spell_path(place), value, _NEEDED.get(kind, "allowed here"), _retype(kind, value))


def _retype(kind: str, value: object) -> str | None:
    """How to write the value so that it has the type the key takes, if the slip is a common one."""
    plain = json.dumps(value) if isinstance(value, bool | int | float | str) else ""
    if kind == "string_type" and plain:
        return f"write it in quotes: {json.dumps(plain)}"
    if kind == "tuple_type" and isinstance(value, str):
        return f"write it as a list: [{plain}]"
    if kind == "int_type" and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return f"write it without quotes: {value}"
    if kind == "bool_type" and str(value).lower() in {"true", "false"}:
        return f"write it without quotes: {str(value).lower()}"
    return None
