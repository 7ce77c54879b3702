"""The instance log: one line an event, what author code prints included, each with the call it belongs to."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO, TextIO

from aenv.define.context import current_context

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LONGEST = 64 * 1024
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class InstanceLog:
    """Writes `time LEVEL source call=… text` lines to a stream, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def renew(self) -> None:
        """In a copy of the process: write to where descriptor 2 leads now, with a lock that no lost thread holds."""
        self._lock = threading.Lock()
        os.dup2(2, self._stream.fileno(), inheritable=False)

    def write(self, level: str, source: str, text: str, call_id: str | None = None) -> None:
        """One event; a text of several lines becomes several."""
        now = time.time()
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        call = f" call={call_id}" if call_id else ""
        # One line an event, whatever it says: no text may look like another event or steer a reader's terminal.
        lines = "".join(f"{stamp} {level:<7} {source}{call} {line.translate(_SHOWN)}\n" for line in text.split("\n"))
        with self._lock:
            try:
                self._stream.write(lines)
                self._stream.flush()
            except (OSError, ValueError):
                # Nobody reads the log any more; the environment itself goes on.
                return


class CapturedStream(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr: whole lines go to the instance log with the call that printed them."""

    def __init__(self, log: InstanceLog, name: str, descriptor: int) -> None:
        self._log = log
        self.name = name
        self._descriptor = descriptor
        self._partial: dict[str | None, str] = {}
        self._lock = threading.Lock()

    def renew(self) -> None:
        """In a copy of the process: as the log it writes to."""
        self._lock = threading.Lock()
        self._log.renew()

    @property
    def buffer(self) -> BinaryIO:
        """For code that writes bytes."""
        return io.BufferedWriter(_Bytes(self), 1)

    def reconfigure(self, **options: object) -> None:
        """Text goes to the log line by line, whatever a program would have it do to a terminal."""

    @property
    def encoding(self) -> str:  # type: ignore[override] # declared as a plain attribute
        """Text is text here; the log encodes it."""
        return "utf-8"

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """Never: a log is no terminal."""
        return False

    def fileno(self) -> int:
        """The descriptor underneath, which subprocesses inherit."""
        return self._descriptor

    def write(self, text: str) -> int:
        """Keep what is no whole line yet, per call, so that two calls never share one."""
        call_id = _call_id()
        with self._lock:
            *lines, rest = (self._partial.pop(call_id, "") + text).split("\n")
            if len(rest) > _LONGEST:
                lines, rest = [*lines, rest], ""
            if rest:
                self._partial[call_id] = rest
        if lines:
            self._emit("\n".join(lines), call_id)
        return len(text)

    def flush(self) -> None:
        """A partial line stays until it is ended or its call is: `print(end="")` in a loop is one line."""

    def end_call(self, call_id: str) -> None:
        """Write out what the call printed without a line end."""
        with self._lock:
            rest = self._partial.pop(call_id, "")
        if rest:
            self._emit(rest, call_id)

    def _emit(self, text: str, call_id: str | None) -> None:
        self._log.write("OUT" if self.name == "stdout" else "ERR", self.name, text, call_id)


class _Bytes(io.RawIOBase):
    """Bytes for a captured stream."""

    def __init__(self, stream: CapturedStream) -> None:
        self._stream = stream

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Buffer) -> int:
        """As text; what is none is shown by its escapes."""
        raw = bytes(data)
        self._stream.write(raw.decode("utf-8", "backslashreplace"))
        return len(raw)


def _call_id() -> str | None:
    context = current_context.get(None)
    return None if context is None else context.call_id


class LogHandler(logging.Handler):
    """Carries the records of `logging`, the author's and ours, into the instance log."""

    def __init__(self, log: InstanceLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One record, with its call when it was made inside one."""
        self._log.write(record.levelname, record.name, self.format(record), _call_id())


def capture(level: str, *, lowest: int = 3) -> tuple[InstanceLog, list[CapturedStream]]:
    """Send stdout, stderr and logging of this process to one instance log on the original stderr.

    The log has a descriptor of its own, no lower than `lowest`, for author code may close those of the streams.
    """
    log = InstanceLog(
        os.fdopen(fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, lowest), "w", encoding="utf-8", errors="backslashreplace")
    )
    # What child processes print belongs to the log as well, though nobody can tell which call it came from.
    os.dup2(2, 1)
    streams = [CapturedStream(log, "stdout", 1), CapturedStream(log, "stderr", 2)]
    sys.stdout, sys.stderr = streams
    root = logging.getLogger()
    root.addHandler(LogHandler(log))
    root.setLevel(level)
    return log, streams
