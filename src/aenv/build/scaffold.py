"""Writing a new project from a template: offline, and either wholly or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath

from aenv._util.nearest import ask, nearest
from aenv.errors import ProjectError
from aenv.model.ref import Version, validate_name

CONFIG = PurePath("config.json")
TEMPLATES = {
    "default": "An echo tool with a reward, a function and a health check",
    "terminal": "A bash session that lives from call to call, with file tools",
    "gym": "A grid world with reset and step, the same for the same seed",
    "agent": "An agent behind a chat tool, offline or with any OpenAI-style API",
}

_TEMPLATES = Path(__file__).with_name("templates")
# What every template starts from; a file of the same name in the template itself wins.
_EVERY = "every"
# Keeps test runners, linters and git from taking a template's files for our own.
_SUFFIX = ".tmpl"

Files = Mapping[PurePath, str]


def scaffold(
    target: Path, name: str, version: str, template: str, *, force: bool = False, config_only: bool = False
) -> list[Path]:
    """Write a template's files into the folder `target`, which need not exist, and return their paths.

    With `config_only` just its config.json. Files that exist are replaced with `force` only, files that the template
    does not have are never touched, and whatever fails leaves the folder as it was.

    Raises:
        RefError: `name` or `version` may not be one.
        ProjectError: no such template, files in the way, or a folder that cannot be written.
    """
    description = find_template(template)
    if config_only:
        # The code is somebody else's, and so are the words for it, its image and its tests.
        config = json.loads(render(template, name, version, description="")[CONFIG])
        config["buildConfig"], config["testConfig"] = {}, {"script": ""}
        files: Files = {CONFIG: json.dumps(config, indent=2) + "\n"}
    else:
        files = render(template, name, version, description)
    try:
        _refuse_obstacles(target, files, force=force)
        _write(target, files)
    except OSError as error:
        raise ProjectError(
            f"cannot write {str(error.filename2 or target)!r}: {error.strerror}",
            hint="nothing was changed; make room or get permission there, or choose another --work-dir",
        ) from error
    return [target / file for file in files]


def render(template: str, name: str, version: str, description: str) -> Files:
    """A template's files with the blanks filled in, by path relative to the project's folder."""
    values = {
        "{{name}}": validate_name(name),
        "{{version}}": str(Version.parse(version)),
        "{{description}}": description,
    }
    return {path: _fill(text, values) for path, text in sorted(_read(template).items())}


def find_template(name: str) -> str:
    """The template's description, or ProjectError that lists all there are."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    width = max(map(len, TEMPLATES))
    listing = "\n".join(f"  {known:<{width}}  {description}" for known, description in TEMPLATES.items())
    question = ask(nearest(name, TEMPLATES, limit=1))
    raise ProjectError(f"no template is called {name!r}" + (f", {question}" if question else "") + f"\n{listing}")


def _read(template: str) -> dict[PurePath, str]:
    return {
        path.relative_to(folder).with_suffix(""): path.read_text(encoding="utf-8")
        for folder in (_TEMPLATES / _EVERY, _TEMPLATES / template)
        for path in folder.rglob(f"*{_SUFFIX}")
    }


def _fill(text: str, values: Mapping[str, str]) -> str:
    for blank, value in values.items():
        text = text.replace(blank, value)
    return text


def _refuse_obstacles(target: Path, files: Files, *, force: bool) -> None:
    """Raise ProjectError if anything stands where a file or one of its folders must go."""
    folders = {folder for file in files for folder in (target / file).parents if folder.is_relative_to(target)}
    for folder in sorted(folders):
        if os.path.lexists(folder) and not folder.is_dir():
            raise ProjectError(f"{str(folder)!r} is in the way: a folder must go there", hint="move it elsewhere")
    present = [file for file in files if os.path.lexists(target / file)]
    for file in present:
        if (target / file).is_dir() and not (target / file).is_symlink():
            raise ProjectError(f"{str(target / file)!r} is in the way: a file must go there", hint="move it elsewhere")
    if present and not force:
        raise ProjectError(
            f"{str(target)!r} already holds {', '.join(map(str, present))}",
            hint="`--force` replaces these files and leaves all others alone",
        )


def _write(target: Path, files: Files) -> None:
    """Write all files aside, then move them into place; a failure undoes what was moved."""
    is_new = not target.exists()
    # On the file system of the target, where a move is one step. The parent of a folder that exists may not be ours.
    with _staging(target.parent if is_new else target) as staging:
        fresh, old = staging / "new", staging / "old"
        for file, text in files.items():
            (fresh / file).parent.mkdir(parents=True, exist_ok=True)
            (fresh / file).write_text(text, encoding="utf-8")
        if is_new:
            fresh.replace(target)
            return
        with ExitStack() as undo:
            for number, file in enumerate(files):
                _make_folders(target / file, undo)
                _swap(fresh / file, target / file, old / f"{number}-{file.name}", undo)
            undo.pop_all()


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=".aenv-init-", dir=folder))
    fresh, old = staging / "new", staging / "old"
    try:
        fresh.mkdir()
        old.mkdir()
        yield staging
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        for leftover in (old, staging):
            with suppress(OSError):
                leftover.rmdir()
        if old.exists():
            # It holds what could not be put back, and that is its author's only copy.
            raise ProjectError(
                f"cannot put back every file that was replaced: {error}", hint=f"the rest is in {str(old)!r}"
            ) from error
        raise
    shutil.rmtree(staging, ignore_errors=True)


def _make_folders(file: Path, undo: ExitStack) -> None:
    for folder in reversed([parent for parent in file.parents if not parent.exists()]):
        folder.mkdir()
        undo.callback(folder.rmdir)


def _swap(new: Path, place: Path, kept: Path, undo: ExitStack) -> None:
    if os.path.lexists(place):
        place.replace(kept)
        undo.callback(kept.replace, place)
    new.replace(place)
    undo.callback(place.unlink)
