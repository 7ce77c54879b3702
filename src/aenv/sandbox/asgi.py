"""An ASGI application inside the sandbox server: asyncio in a thread, requests told to it and answers carried back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio

from aenv.define.registry import Registry, current_registry
from aenv.sandbox import jsonrpc
from aenv.sandbox.http import EventStream, InternalError, Reply, Request, Response, failure
from aenv.sandbox.loop import Future, Loop

logger = logging.getLogger(__name__)

END_SECONDS = 1.0
"""How long the end of the server waits for asyncio's thread, which author code may hold."""
LOOK_SECONDS = 0.05
"""How often a client that reads too slowly is looked at: a connection does not tell when it has room again."""

Tell = Callable[..., bool]
Application = Callable[..., Awaitable[None]]


class AsyncioThread:
    """An asyncio loop in a thread of its own, with a group of tasks that lives as long as it does."""

    def __init__(self, registry: Registry) -> None:
        # What runs there finds this environment's registry, not the process's.
        self._context = copy_context()
        self._context.run(current_registry.set, registry)
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended = asyncio.Event()
        self._asyncio: asyncio.AbstractEventLoop
        self._tasks: anyio.abc.TaskGroup
        self._thread: threading.Thread

    def start(
        self, serving: Callable[[], AbstractAsyncContextManager[None]], check: Callable[[], Awaitable[None]]
    ) -> None:
        """Return when `serving` is entered, or raise what `check` or it raised."""
        work = partial(self._serve, serving, check)
        self._thread = threading.Thread(target=anyio.run, args=(work,), name="aenv-mcp", daemon=True)
        self._thread.start()
        self._started.result()

    def tell(self, callback: Callable[..., object], *args: object) -> bool:
        """Have it called there soon; False once the thread has ended."""
        try:
            self._asyncio.call_soon_threadsafe(partial(callback, *args), context=self._context)
        except RuntimeError:
            return False
        return True

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> bool:
        """Run a coroutine function there; False once the thread has ended."""
        return self.tell(self._tasks.start_soon, function, *args)

    def end(self) -> None:
        """Cancel everything; a thread that author code blocks is left to end with the process."""
        self.tell(self._ended.set)
        self._thread.join(END_SECONDS)

    async def _serve(
        self, serving: Callable[[], AbstractAsyncContextManager[None]], check: Callable[[], Awaitable[None]]
    ) -> None:
        self._asyncio = asyncio.get_running_loop()
        try:
            await check()
            async with serving(), anyio.create_task_group() as self._tasks:
                self._started.set_result(None)
                await self._ended.wait()
                self._tasks.cancel_scope.cancel()
        except Exception as problem:
            if self._started.done():
                raise
            self._started.set_exception(problem)


_OWN_HEADERS = {"content-type", "content-length", "cache-control", "connection", "x-accel-buffering"}


class Exchange:
    """One request told to an ASGI application in asyncio's thread, and its answer carried back to the server's loop."""

    def __init__(self, request: Request, application: Application, loop: Loop, tell: Tell) -> None:
        self.reply: Future[Reply] = Future()
        self._request = request
        self._application = application
        self._loop = loop
        self._tell = tell
        self._has_body = True
        self._left = asyncio.Event()
        self._status = 500
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._stream: EventStream | None = None

    @property
    def is_standing(self) -> bool:
        """Whether the client waits for news, and not for an answer that will come."""
        return self._request.method == "GET" or self._request.headers.get("mcp-method") == "subscriptions/listen"

    # on the server's loop

    def hang_up(self) -> None:
        """The client has left, or is to be let go."""
        self._tell(self._left.set)

    def tell_change(self) -> None:
        """Tell a client of an older revision that the list of tools is another; newer ones subscribe to it."""
        if self._stream is not None and self._request.method == "GET":
            self._stream.send(jsonrpc.notification("notifications/tools/list_changed", {}))

    def _open(self, written: asyncio.Event) -> None:
        self._stream = self._request.open_stream(self._other_headers())
        self._tell(written.set)

    def _write(self, events: bytes, written: asyncio.Event) -> None:
        assert self._stream is not None
        self._stream.relay(events)
        self._release(self._stream, written)

    def _release(self, stream: EventStream, written: asyncio.Event) -> None:
        """Let the writer go on when its client has read most of what there is."""
        if stream.is_congested:
            self._loop.later(LOOK_SECONDS, lambda: self._release(stream, written))
        else:
            self._tell(written.set)

    def _answer(self) -> None:
        content_type = self._headers.get("content-type", "")
        self.reply.set(Response(self._status, b"".join(self._body), content_type, self._other_headers()))

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self.reply.set(None)
        else:
            # Nothing, if it was answered.
            self.reply.set(failure(InternalError("the official MCP server gave no answer", hint="see the log")))

    def _other_headers(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self._headers.items() if name not in _OWN_HEADERS]

    # in asyncio's thread

    async def run(self) -> None:
        """Ask the application."""
        try:
            await self._application(self._scope(), self._receive, self._send)
        except Exception:
            # The other requests of the task group go on.
            logger.exception("the official MCP server failed to answer a request")
        finally:
            self._loop.post(self._end)

    def _scope(self) -> dict[str, object]:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode("latin-1"),
            "query_string": request.query.encode("latin-1"),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
            "client": None,
            "server": None,
        }

    async def _receive(self) -> dict[str, object]:
        if self._has_body:
            self._has_body = False
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
            if self._streams:
                await self._written(self._open)
        elif self._streams:
            await self._written(partial(self._write, message.get("body", b"")))
        else:
            self._body.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._loop.post(self._answer)

    @property
    def _streams(self) -> bool:
        return self._headers.get("content-type", "").startswith("text/event-stream")

    async def _written(self, write: Callable[[asyncio.Event], None]) -> None:
        written = asyncio.Event()
        self._loop.post(partial(write, written))
        await written.wait()
