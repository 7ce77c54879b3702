"""The supervisor's event loop: descriptors and timers, one thread, callbacks that never block."""

from __future__ import annotations

import heapq
import itertools
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic

Callback = Callable[[], None]


class Reactor:
    """Calls back when a descriptor can be read, or when a time has come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._numbers = itertools.count()
        self._fresh: set[int] = set()
        """Descriptors watched since the last wait: what the kernel told of such a number was about one closed since."""
        self.is_stopped = False
        self.children: set[int] = set()
        """Processes that somebody here waits for; all other children are adopted."""

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call whenever it can be read, or its other end is gone."""
        self._readers[descriptor] = callback
        self._fresh.add(descriptor)
        self._epoll.register(descriptor, select.EPOLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Forget it; to be done before it is closed."""
        if self._readers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
            self._writers.pop(descriptor, None)

    def want_write(self, descriptor: int, callback: Callback | None) -> None:
        """Call also when it can be written, until told None; it must be watched."""
        if callback is None:
            self._writers.pop(descriptor, None)
        else:
            self._writers[descriptor] = callback
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if callback else 0))

    def later(self, seconds: float, callback: Callback) -> None:
        """Call once, in so many seconds."""
        heapq.heappush(self._timers, (monotonic() + seconds, next(self._numbers), callback))

    def stop(self) -> None:
        """Have `run` return."""
        self.is_stopped = True

    def run(self) -> None:
        """Until stopped."""
        while not self.is_stopped:
            self.turn()

    def turn(self) -> None:
        """Wait for what comes next, and call whoever is concerned."""
        rest = -1.0 if not self._timers else max(0.0, self._timers[0][0] - monotonic())
        self._fresh.clear()
        for descriptor, mask in self._epoll.poll(rest):
            if descriptor in self._fresh:
                continue
            if mask & select.EPOLLOUT and (writer := self._writers.get(descriptor)) is not None:
                writer()
            if mask & ~select.EPOLLOUT and (reader := self._readers.get(descriptor)) is not None:
                reader()
        while self._timers and self._timers[0][0] <= monotonic():
            heapq.heappop(self._timers)[2]()


class Outbox:
    """Writes to a socket without ever waiting for its reader: what does not fit now goes later, in order."""

    def __init__(self, reactor: Reactor, target: socket.socket) -> None:
        self._reactor = reactor
        self._socket = target
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._is_blocked = False
        self.size = 0
        """Bytes that wait."""

    def send(self, content: bytes, descriptors: list[int] | None = None) -> None:
        """Send now or later; the descriptors are closed here once they are sent."""
        self._waiting.append((content, descriptors or []))
        self.size += len(content)
        if len(self._waiting) == 1:
            self._flush()

    def drop(self) -> None:
        """Forget what has not been sent."""
        for _content, descriptors in self._waiting:
            _close(descriptors)
        self._waiting.clear()
        self.size = 0

    def _flush(self) -> None:
        try:
            while self._waiting:
                content, descriptors = self._waiting[0]
                sent = self._send(content, descriptors)
                _close(descriptors)
                self.size -= sent
                if sent < len(content):
                    self._waiting[0] = (content[sent:], [])
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            self._wait(self._flush)
        except OSError:
            # Nobody is there any more; whoever reads from the socket is told so.
            self.drop()
        else:
            self._wait(None)

    def _wait(self, callback: Callback | None) -> None:
        if self._is_blocked != (callback is not None):
            self._is_blocked = not self._is_blocked
            self._reactor.want_write(self._socket.fileno(), callback)

    def _send(self, content: bytes, descriptors: list[int]) -> int:
        if descriptors:
            return socket.send_fds(self._socket, [content], descriptors)
        return self._socket.send(content)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
