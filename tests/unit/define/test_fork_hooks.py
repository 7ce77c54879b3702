"""What may stand under `@register_fork`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aenv import register_fork
from aenv.define.registry import Registry, current_registry
from aenv.errors import DefinitionError


@pytest.fixture
def registry() -> Iterator[Registry]:
    token = current_registry.set(Registry())
    yield current_registry.get()
    current_registry.reset(token)


def test_functions_and_generator_functions_are_kept_in_their_order(registry: Registry) -> None:
    def plain() -> None: ...
    def both() -> Iterator[None]:
        yield

    assert register_fork(both) is both
    assert register_fork(plain) is plain
    assert registry.fork_hooks == [both, plain]


def test_async_functions_are_refused(registry: Registry) -> None:
    async def coroutine() -> None: ...
    async def generator() -> AsyncIterator[None]:
        yield

    for function in (coroutine, generator):
        with pytest.raises(DefinitionError, match=f"fork hook {function.__name__} is async"):
            register_fork(function)
    assert registry.fork_hooks == []


def test_what_cannot_be_called_without_arguments_is_refused(registry: Registry) -> None:
    def needs(value: int) -> None: ...

    wrong: list[Any] = [needs, None, "text"]
    for function in wrong:
        with pytest.raises(DefinitionError, match="without arguments"):
            register_fork(function)


def test_a_module_that_is_imported_again_replaces_its_hooks_where_nobody_serves() -> None:
    token = current_registry.set(Registry(replaces=True))
    try:
        for _ in range(2):

            @register_fork
            def hook() -> None: ...

        assert current_registry.get().fork_hooks == [hook]
    finally:
        current_registry.reset(token)
