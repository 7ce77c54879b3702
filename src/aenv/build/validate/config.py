"""Checks of config.json and of the files it names."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise, takewhile

from aenv.build.validate.declared import KEY, read_declared
from aenv.build.validate.findings import Flaw
from aenv.build.validate.subject import Subject
from aenv.errors import ConfigError
from aenv.model.problems import Problem
from aenv.model.spec import CONFIG_FILE

_SCRIPT_ENDINGS = (".py", ".sh")
# What only a shell can tell apart from a file name, or that makes the rest relative to another folder.
_SHELL_SIGNS = set("$*?`~<>|&;(){}=:")


def find_missing(subject: Subject) -> Iterator[Flaw]:
    """config.missing."""
    if isinstance(subject.refusal, FileNotFoundError):
        yield Flaw(CONFIG_FILE, f"is missing in {subject.folder}")


def find_unreadable(subject: Subject) -> Iterator[Flaw]:
    """config.unreadable."""
    problem = subject.refusal
    if isinstance(problem, ConfigError) and "problems" not in problem.details:
        line = f":{problem.details['line']}" if "line" in problem.details else ""
        said = problem.message.removeprefix(f"{CONFIG_FILE}").lstrip()
        yield Flaw(f"{CONFIG_FILE}{line}", re.sub(r"^: line (\d+), column (\d+):", "is not JSON:", said), problem.hint)
    elif isinstance(problem, OSError) and not isinstance(problem, FileNotFoundError):
        reason = (problem.strerror or str(problem)).lower()
        yield Flaw(CONFIG_FILE, f"cannot be read: {reason}", "make it a file that you may read")


def find_invalid(subject: Subject) -> Iterator[Flaw]:
    """config.invalid."""
    if isinstance(subject.refusal, ConfigError):
        problems = subject.refusal.details.get("problems")
        for members in problems if isinstance(problems, list) else ():
            yield _flaw(Problem(**members))


def find_misspelt(subject: Subject) -> Iterator[Flaw]:
    """config.misspelt_key."""
    return (_flaw(problem) for problem in _unknown_keys(subject) if problem.hint)


def find_unknown(subject: Subject) -> Iterator[Flaw]:
    """config.unknown_key."""
    return (_flaw(problem) for problem in _unknown_keys(subject) if not problem.hint)


def find_bad_promises(subject: Subject) -> Iterator[Flaw]:
    """validation.invalid."""
    if subject.spec is not None:
        yield from map(_flaw, read_declared(subject.spec)[1])


def find_missing_dockerfile(subject: Subject) -> Iterator[Flaw]:
    """build.dockerfile_missing: only where it is written, because the local engine needs none."""
    if subject.spec is None or "dockerfile" not in subject.spec.build.model_fields_set:
        return
    path = subject.spec.build.dockerfile
    if not (subject.folder / path).is_file():
        yield Flaw(f"{CONFIG_FILE}: buildConfig.dockerfile", f"is {path!r}, which is not a file")


def find_missing_script(subject: Subject) -> Iterator[Flaw]:
    """test.script_missing."""
    if subject.spec is None:
        return
    for path in script_files(subject.spec.test.script):
        if not subject.has(path):
            yield Flaw(f"{CONFIG_FILE}: testConfig.script", f"names {path!r}, which does not exist")


def script_files(script: str) -> list[str]:
    """The words of a shell line that can be nothing but files of the project; doubtful ones are left out."""
    try:
        words = shlex.split(script, comments=True)
    except ValueError:
        return []
    if "cd" in words:
        return []
    named = [word for word in _operands(words) if _looks_like_file(word)]
    if "pytest" in words:
        named += takewhile(_is_plain, _operands(words[words.index("pytest") + 1 :]))
    files = dict.fromkeys(word.partition("::")[0] for word in named)
    return [file for file in files if _is_plain(file) and not file.startswith("/")]


def _operands(words: list[str]) -> Iterator[str]:
    """Words that are no option, nor what may be an option's value: that may be a file yet to be written."""
    pairs = pairwise(["", *words])
    return (word for before, word in pairs if not before.startswith("-") and not word.startswith("-"))


def _is_plain(word: str) -> bool:
    return not _SHELL_SIGNS & set(word.partition("::")[0])


def _looks_like_file(word: str) -> bool:
    return "/" in word or (word.endswith(_SCRIPT_ENDINGS) and shutil.which(word) is None)


def _unknown_keys(subject: Subject) -> list[Problem]:
    if subject.spec is None:
        return []
    return [problem for problem in subject.spec.unknown_keys() if problem.path != KEY]


def _flaw(problem: Problem) -> Flaw:
    where = f"{CONFIG_FILE}: {problem.path}" if problem.path else CONFIG_FILE
    return Flaw(where, problem.message, problem.hint)
