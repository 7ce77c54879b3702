"""The engine's end of the socket to its supervisor: requests with their answers, on the caller's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

from aenv.engines.local.frames import Decoder, Frame, Message, encode
from aenv.errors import EngineError, EngineLost, EngineUnavailable
from aenv.settings import EngineSettings

_AT_ONCE = 1 << 18
_HELLO_SECONDS = 30.0
_END_SECONDS = 30.0
_UNREAD = 64


class Link:
    """One running supervisor. It ends when the link is closed, or with this process."""

    def __init__(
        self, process: subprocess.Popen[bytes], ours: socket.socket, learned: Callable[[Message], None]
    ) -> None:
        self._process = process
        self._socket = ours
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._streams: dict[int, asyncio.Queue[Frame | None]] = {}
        self._learned = learned
        self._unsent = bytearray()
        self.hello: asyncio.Future[Message] = self._loop.create_future()
        self.is_lost = False
        self._loop.add_reader(ours.fileno(), self._read)

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return self._process.pid

    async def ask(
        self, message: Message, blob: bytes = b"", *, cancel: str | None = None, seconds: float | None = 60.0
    ) -> Frame:
        """Send it, and wait for the answer; EngineLost if the supervisor goes away.

        `cancel` is the operation by which the supervisor is told that nobody waits any more. Without an answer after
        so many seconds, EngineError says so.
        """
        token = self._send(message, blob)
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[token] = future
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise EngineError(
                f"the engine's supervisor did not answer {message['op']!r} in {seconds:g} s",
                hint="see its log; `aenv doctor` shows what is left of it",
            ) from None
        except asyncio.CancelledError:
            if cancel is not None and not self.is_lost:
                self.tell({"op": cancel, "token": token, "id": message.get("copy", message["id"])})
            raise
        finally:
            self._waiting.pop(token, None)

    async def stream(self, message: Message) -> AsyncGenerator[bytes, None]:
        """Send it, and give what comes until its end."""
        queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        token = self._send(message, b"")
        self._streams[token] = queue
        try:
            while (frame := await queue.get()) is not None:
                if frame.blob:
                    yield frame.blob
                if frame.message.get("end", True):
                    return
        finally:
            self._streams.pop(token, None)
            with contextlib.suppress(EngineLost):
                self.tell({"op": "unfollow", "id": message["id"], "token": token})

    def tell(self, message: Message) -> None:
        """Send what has no answer."""
        self._write(encode(message))

    async def aclose(self) -> None:
        """Hang up, and wait until the supervisor has taken everything away."""
        self._fail()
        try:
            await asyncio.to_thread(self._process.wait, _END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _send(self, message: Message, blob: bytes) -> int:
        if self.is_lost:
            raise EngineLost("the engine's supervisor has ended")
        token = next(self._tokens)
        self._write(encode({**message, "token": token}, blob))
        return token

    def _write(self, content: bytes) -> None:
        if self.is_lost:
            raise EngineLost("the engine's supervisor has ended")
        if self._unsent:
            self._unsent += content
            return
        try:
            sent = self._socket.send(content)
        except BlockingIOError:
            sent = 0
        except OSError:
            # Told by the end of what can be read.
            return
        if sent < len(content):
            self._unsent += content[sent:]
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _flush(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            part = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._fail()
            return
        for frame in self._decoder.feed(part):
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        message = frame.message
        if (event := message.get("event")) is not None:
            if event == "learned":
                self._learned(message)
            elif not self.hello.done():
                self.hello.set_result(message)
            return
        token = message["token"]
        if (queue := self._streams.get(token)) is not None:
            if queue.qsize() >= _UNREAD:
                # Whoever follows slowly misses the oldest: this process's memory is everybody's.
                queue.get_nowait()
            queue.put_nowait(frame)
        elif (future := self._waiting.get(token)) is not None and not future.done():
            future.set_result(frame)

    def _fail(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        waiting: list[asyncio.Future[Any]] = [*self._waiting.values(), self.hello]
        for future in waiting:
            if not future.done():
                future.set_exception(EngineLost("the engine's supervisor ended", hint="ask again: it is started anew"))
        # Nobody may have asked for it yet.
        self.hello.exception()
        for queue in self._streams.values():
            queue.put_nowait(None)


async def connect(settings: EngineSettings, learned: Callable[[Message], None]) -> Link:
    """Start a supervisor; EngineUnavailable when this machine does not give what the settings ask for."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - the socket's own signature
    command = [sys.executable, "-I", "-m", "aenv.engines.local.supervisor", str(theirs.fileno())]
    command += [settings.isolation, str(settings.run), str(settings.log_bytes)]
    with theirs:
        process = await asyncio.to_thread(
            subprocess.Popen,
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            start_new_session=True,
            cwd="/",
        )
    link = Link(process, ours, learned)
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            hello = await link.hello
    except (EngineLost, TimeoutError) as problem:
        await link.aclose()
        raise EngineUnavailable(
            "the engine's supervisor did not start", hint="see what it wrote to stderr"
        ) from problem
    except BaseException:
        await link.aclose()
        raise
    if "error" in hello:
        await link.aclose()
        raise EngineUnavailable(str(hello["error"]), hint=hello.get("hint"))
    return link
