"""Ending from outside as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Let those who end us from outside, such as CI, have what we started ended too: as Ctrl-C does."""
    # What is ignored already, as nohup does, stays ignored.
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ends:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ends:
            signal.signal(number, signal.SIG_DFL)
