"""Importing an author's project: each file once, in a stated order, failures told in the author's own frames."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NamedTuple

from aenv.define.registry import Registry, current_registry
from aenv.errors import AEnvError, LoadError

_SKIPPED_FOLDERS = {"test", "tests", "node_modules", "site-packages", "build", "dist"}
_MACHINERY = ("/aenv/", "/importlib/")
_SKIPPED_FILES = {"conftest.py", "setup.py", "noxfile.py"}


class _Compiled(NamedTuple):
    module: ModuleType
    code: CodeType


@dataclass(frozen=True, slots=True)
class Plan:
    """What loading a project will import, in which order; making one runs nothing of it."""

    project: Path
    root: Path
    files: list[Path]
    compiled: dict[Path, _Compiled] = field(default_factory=dict)
    """Modules that were found and compiled beforehand."""

    @classmethod
    def make(cls, project: Path) -> Plan:
        """For a project folder, or one `.py` file; LoadError if it is neither."""
        project = project.resolve()
        root, files = _plan(project)
        return cls(project if project.is_dir() else root, root, files)

    def compile(self) -> None:
        """Do beforehand all that can be done before the code runs."""
        self._prepare_path()
        for file in self.files:
            # Finding a module in a package would run the package.
            if file.parent == self.root and (found := _compile(file)) is not None:
                self.compiled[file] = found

    def load(self, registry: Registry) -> None:
        """Import it all into the registry; LoadError on the first file that does not import."""
        if not self.compiled:
            self._prepare_path()
        token = current_registry.set(registry)
        try:
            for file in self.files:
                _import(file, self)
        finally:
            current_registry.reset(token)

    def _prepare_path(self) -> None:
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        importlib.invalidate_caches()


def load(project: Path, registry: Registry | None = None) -> Registry:
    """Import a project folder, or one `.py` file, into a registry.

    `src/` (or the folder itself when it has none) is put on `sys.path` and stays there, so that lazy imports work.
    Raises LoadError on the first file that does not import; nothing after it is run.
    """
    registry = Registry() if registry is None else registry
    Plan.make(project).load(registry)
    return registry


def source_files(project: Path) -> list[Path]:
    """The files that `load` imports, in its order."""
    return _plan(project.resolve())[1]


def _plan(project: Path) -> tuple[Path, list[Path]]:
    if project.is_file() and project.suffix == ".py":
        return project.parent, [project]
    if not project.is_dir():
        raise LoadError(
            f"{str(project)!r} is neither a folder nor a .py file", hint="give the folder that holds config.json"
        )
    root = project / "src" if (project / "src").is_dir() else project
    return root, sorted(_walk(root), key=lambda path: path.relative_to(root).parts)


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(("_", ".")):
            continue
        if path.is_dir():
            # A link may lead to a folder above it, and then there would be no end.
            if not path.is_symlink() and path.name not in _SKIPPED_FOLDERS and not (path / "pyvenv.cfg").exists():
                yield from _walk(path)
        elif path.suffix == ".py" and not _is_test(path.name):
            yield path


def _is_test(name: str) -> bool:
    return name in _SKIPPED_FILES or name.startswith("test_") or name.endswith("_test.py")


def _compile(file: Path) -> _Compiled | None:
    spec = importlib.machinery.PathFinder.find_spec(file.stem, [str(file.parent)])
    if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or "." in file.stem:
        return None
    try:
        code = spec.loader.get_code(file.stem)
    except (SyntaxError, ValueError, OSError):
        # Told when it is imported, as it always is.
        return None
    if code is None or file.stem in sys.modules:
        return None
    return _Compiled(importlib.util.module_from_spec(spec), code)


def _run(compiled: _Compiled) -> None:
    """As an import would, from where the module has been found and compiled."""
    name = compiled.module.__name__
    sys.modules[name] = compiled.module
    try:
        exec(compiled.code, compiled.module.__dict__)  # noqa: S102 - importing is running
    except BaseException:
        sys.modules.pop(name, None)
        raise


def _import(file: Path, plan: Plan) -> None:
    compiled = plan.compiled.get(file)
    try:
        if compiled is not None and compiled.module.__name__ not in sys.modules:
            _run(compiled)
            return
        name = _module_name(file, plan)
        module = importlib.import_module(name)
    except (KeyboardInterrupt, _Misnamed):
        raise
    except BaseException as problem:  # an author's module may raise anything, sys.exit included
        raise _failure(problem, file, file.relative_to(plan.project), plan.project) from problem
    _check_origin(module, name, file, plan)


class _Misnamed(LoadError):
    """The file's name cannot be a module's."""


def _module_name(file: Path, plan: Plan) -> str:
    if "." in file.stem:
        raise _Misnamed(f"{file.relative_to(plan.project)}: a module's name cannot hold a dot", hint="rename the file")
    return ".".join(file.relative_to(plan.root).with_suffix("").parts)


def _check_origin(module: ModuleType, name: str, file: Path, plan: Plan) -> None:
    origin = getattr(module, "__file__", None)
    if origin is None or Path(origin).resolve() != file.resolve():
        raise LoadError(
            f"{file.relative_to(plan.project)}: the module name {name!r} belongs to {origin or 'a built-in module'}",
            hint="rename the file, so that an import of that name is not ambiguous",
        )


def _failure(problem: BaseException, file: Path, shown: Path, project: Path) -> LoadError:
    if isinstance(problem, AEnvError):
        message, hint = f"{shown}: {problem.message}", problem.hint
    elif isinstance(problem, SystemExit):
        message, hint = f"{shown}: the module called sys.exit({problem.code!r}) while it was imported", None
        hint = 'put what runs as a script under `if __name__ == "__main__":`'
    elif isinstance(problem, ModuleNotFoundError):
        message = f"{shown}: no module named {problem.name!r}"
        hint = f"add it to requirements.txt and install it, or correct the import: pip install {problem.name}"
    else:
        message, hint = f"{shown}: {type(problem).__name__}: {problem}", None
    cause = problem.code if isinstance(problem, AEnvError) else type(problem).__name__
    return LoadError(message, hint=hint, file=str(file), cause=cause, traceback=author_traceback(problem, project))


def author_traceback(problem: BaseException, project: Path | None) -> list[str]:
    """The traceback's lines, cut to frames in the project's own files; all of them when none is."""
    frames = problem.__traceback__
    with contextlib.suppress(OSError):
        linecache.checkcache()
    shown = traceback.TracebackException(type(problem), problem, frames, compact=True)
    own = [frame for frame in shown.stack if project is not None and _belongs(frame.filename, project)]
    shown.stack = traceback.StackSummary.from_list(own or list(_without_ours(frames)))
    # The chain behind it tells about machinery, not about the author's file.
    shown.__cause__ = shown.__context__ = None
    return [line for chunk in shown.format() for line in chunk.rstrip("\n").split("\n")]


def _belongs(filename: str, project: Path) -> bool:
    return Path(filename).is_relative_to(project) and "site-packages" not in filename


def _without_ours(frames: TracebackType | None) -> Iterator[traceback.FrameSummary]:
    for frame in traceback.extract_tb(frames):
        if not frame.filename.startswith("<frozen") and not any(part in frame.filename for part in _MACHINERY):
            yield frame
