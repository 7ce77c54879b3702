"""The policy `allowlist`: one proxy for all sandboxes of an engine; `python -m aenv.engines.local.egress --fd N`.

A sandbox has no network but its own loopback. A listener opened there is handed to this process, which is an HTTP and a
SOCKS5 proxy on it, and connects to what the sandbox's list allows (see allow.py). Names are resolved here, once, and
the connection goes to an address that was checked. So only programs that know proxies reach anything, and UDP reaches
nothing. A list that holds an address or network lets the sandbox have any name looked up, which is a way to send a few
bytes to whoever serves that name.

The engine sends JSON over the SEQPACKET socket N: {"op": "serve", "id": …, "allow": […]} with the listener, and
{"op": "drop", "id": …}. The process ends when that socket closes, and leaves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_address

from aenv.engines.local.allow import Address, AllowList, Target, settle_address
from aenv.engines.local.proxywire import (
    CHUNK,
    HEAD_SECONDS,
    Pair,
    Refusal,
    Request,
    read_request,
    read_response,
    unreachable,
)
from aenv.errors import ConfigError

logger = logging.getLogger(__name__)

RESOLVE_SECONDS = 15.0
CONNECT_SECONDS = 10.0
"""For each of the first `ADDRESSES` addresses of a name."""
ADDRESSES = 3
IDLE_SECONDS = 600.0
"""A connection on which nothing moves, either way, for so long is closed."""
FLUSH_SECONDS = 30.0
"""How long the last bytes may wait for a reader once everything else is done."""
LAST_SECONDS = 2.0
"""How long a client may take to close after the end."""
CONNECTIONS = 256
"""Open connections that one sandbox may have; more are closed at once."""
LOOKUPS = 4
"""Names that one sandbox may have looked up at once: a lookup holds a thread, and the threads are for all."""
THREADS = 32
LINES = 20
"""Refusals logged for one sandbox within a minute."""
MESSAGE_BYTES = 1 << 18


def variables(port: int) -> dict[str, str]:
    """What programs in the sandbox must find in their environment to use the proxy on this port of its loopback."""
    # Not socks5h:// for the last: some clients do not start on it unless an extra package is installed.
    names = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), f"http://127.0.0.1:{port}")
    # Not ::1, which some clients take for a host with a port.
    names["no_proxy"] = "localhost,127.0.0.1"
    return {**names, **{name.upper(): value for name, value in names.items()}}


@dataclass
class Sandbox:
    """One sandbox: what it may reach, and what it has open."""

    id: str
    allow: AllowList
    pool: ThreadPoolExecutor
    lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKUPS))
    server: asyncio.Server | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    minute: int = -1
    logged: int = 0

    async def open(self, listener: socket.socket) -> None:
        """Serve what comes to the listener, from now until `close`."""
        self.server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK)

    def close(self) -> None:
        """Close the listener and every connection."""
        if self.server is not None:
            self.server.close()
        for task in self.tasks:
            task.cancel()

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self.tasks) >= CONNECTIONS:
            writer.transport.abort()
            return
        self.tasks.add(task)
        try:
            async with _closing(Pair(reader, writer)) as near:
                await self._serve(near)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one side has gone, or nothing moved for too long, or the sandbox is dropped: nobody is left to tell
        except Exception:  # whatever one sandbox sends, the others are still served
            logger.exception("egress failed: instance=%s", self.id)
        finally:
            self.tasks.discard(task)

    async def _serve(self, near: Pair) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            first = await near.reader.readexactly(1)
        is_socks = first == b"\x05"
        try:
            request = await read_request(first, near)
            async with _closing(await self._connect(request.target)) as far:
                near.writer.write(request.reply)
                await _relay(near, far, request)
        except Refusal as refusal:
            near.writer.write(refusal.socks if is_socks else refusal.http)
        await _finish(near)

    async def _connect(self, target: Target) -> Pair:
        problem = unreachable(f"{target} has no address", socks=4)
        for address in (await self._find(target))[:ADDRESSES]:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return Pair(*await asyncio.open_connection(str(address), target.port, limit=CHUNK))
            except TimeoutError:
                problem = unreachable(f"{target} did not answer in time", status="504 Gateway Timeout", socks=6)
            except OSError as failure:
                problem = unreachable(f"{target} cannot be reached: {failure.strerror or failure}", socks=5)
        raise problem

    async def _find(self, target: Target) -> list[Address]:
        """Those addresses of the target that may be connected to."""
        if not self.allow.may_resolve(target):
            raise self._refused(f"{target} is not in networkAllow", target)
        found = await self._resolve(target.host) if isinstance(target.host, str) else [target.host]
        allowed = [one for one in found if self.allow.permits(target, one, is_host=_is_ours(one))]
        if not allowed and (found or not self.allow.lists(target)):
            raise self._refused(f"{target} is not in networkAllow, or has no public address", target)
        return allowed

    async def _resolve(self, name: str) -> list[Address]:
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                await self.lookups.acquire()
                lookup = asyncio.get_running_loop().run_in_executor(self.pool, _look_up, name)
                # Freed when the thread is, not when we stop waiting for it.
                lookup.add_done_callback(lambda _: self.lookups.release())
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise unreachable(f"{name} was not resolved in time", status="504 Gateway Timeout") from None

    def _refused(self, message: str, target: Target) -> Refusal:
        minute = int(time.monotonic() // 60)
        self.logged = self.logged + 1 if minute == self.minute else 1
        self.minute = minute
        if self.logged <= LINES:
            logger.warning("egress refused: instance=%s host=%s", self.id, target)
        hint = f"add {str(target.host)!r} to networkAllow in config.json; what is not public needs its address there"
        return Refusal("403 Forbidden", 2, "network.refused", message, hint)


def _look_up(name: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [settle_address(ip_address(address[0])) for *_, address in found]


def _is_ours(address: Address) -> bool:
    """Whether this machine has the address: it would then also be the source. Nothing is sent."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((str(address), 9))
        return ip_address(probe.getsockname()[0]) == address
    return False


async def _relay(near: Pair, far: Pair, request: Request) -> None:
    """Pass bytes both ways until the end: of both for a tunnel, of the response for a request."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(IDLE_SECONDS) as limit, asyncio.TaskGroup() as group:

        def touch() -> None:
            limit.reschedule(loop.time() + IDLE_SECONDS)

        far.writer.write(request.head)
        upward = group.create_task(_pump(near, far, touch, request.length))
        if not request.head:
            await _pump(far, near, touch)
        else:
            await _respond(near, far, touch)
            upward.cancel()


async def _respond(near: Pair, far: Pair, touch: Callable[[], None]) -> None:
    try:
        while (head := await read_response(far.reader)).first[2].startswith(b"1"):
            near.writer.write(head.first[1] + b"\r\n\r\n")
    except (ValueError, OSError, asyncio.IncompleteReadError):
        near.writer.write(unreachable("the host did not answer in HTTP/1.1").http)
        return
    near.writer.write(head.to_bytes(head.first[1]))
    await _pump(far, near, touch)


async def _pump(source: Pair, sink: Pair, touch: Callable[[], None], left: int | None = None) -> None:
    """Pass bytes on until the source ends, and say so to the sink; or `left` of them. A broken side breaks both."""
    try:
        while left != 0:
            chunk = await source.reader.read(CHUNK if left is None else min(left, CHUNK))
            if not chunk:
                sink.writer.write_eof()
                return
            touch()
            sink.writer.write(chunk)
            await sink.writer.drain()
            left = None if left is None else left - len(chunk)
    except OSError:
        source.writer.transport.abort()
        sink.writer.transport.abort()


async def _finish(near: Pair) -> None:
    """End our half, then read what still comes: closed with bytes unread, the kernel would take our last words back."""
    near.writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_SECONDS):
            while await near.reader.read(CHUNK):
                pass


@contextlib.asynccontextmanager
async def _closing(pair: Pair) -> AsyncIterator[Pair]:
    """Close it at the end, with what is still unsent given some time; at once after an error."""
    try:
        yield pair
        pair.writer.close()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await pair.writer.wait_closed()
    finally:
        pair.writer.transport.abort()


async def _serve_all(control: socket.socket) -> None:
    """Obey the engine until it closes the socket."""
    sandboxes: dict[str, Sandbox] = {}
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lookup")
    while True:
        message, descriptors = await _receive(control)
        if not message:
            return
        try:
            await _obey(json.loads(message), descriptors, sandboxes, pool)
        except (ValueError, KeyError, TypeError, IndexError, OSError, ConfigError) as problem:
            logger.error("egress cannot do %.200r: %s", message, problem)  # noqa: TRY400 - the message says all
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


async def _obey(
    order: dict[str, object], descriptors: list[int], sandboxes: dict[str, Sandbox], pool: ThreadPoolExecutor
) -> None:
    name = str(order["id"])
    if (former := sandboxes.pop(name, None)) is not None:
        former.close()
    if order["op"] != "serve":
        return
    entries = order["allow"]
    if not isinstance(entries, list):
        raise TypeError("allow is not a list")
    sandbox = Sandbox(name, AllowList.parse(str(entry) for entry in entries), pool)
    listener = socket.socket(fileno=descriptors[0])
    del descriptors[0]
    try:
        await sandbox.open(listener)
    except BaseException:
        listener.close()
        raise
    sandboxes[name] = sandbox


async def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """The next message with its descriptors; an empty one when the engine has gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            message, descriptors, _flags, _address = socket.recv_fds(control, MESSAGE_BYTES, 4)
        except BlockingIOError:
            ready = asyncio.Event()
            loop.add_reader(control, ready.set)
            await ready.wait()
            loop.remove_reader(control)
        except ConnectionError:
            return b"", []
        else:
            return message, descriptors


def main() -> None:
    """Serve until the engine's socket closes."""
    parser = argparse.ArgumentParser(prog="python -m aenv.engines.local.egress", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the engine's SEQPACKET socket")
    control = socket.socket(fileno=parser.parse_args().fd)
    control.settimeout(0)
    logging.basicConfig(format="%(message)s")
    # An interrupt at a terminal reaches the whole group; when to end is the engine's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner() as runner:
        runner.run(_serve_all(control))
        # Threads may still wait for a name server; the interpreter's own end would wait for them.
        os._exit(0)


if __name__ == "__main__":
    main()
