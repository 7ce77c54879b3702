"""Durations as text, in the spelling of Go: "300ms", "90s", "1h30m"."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from aenv._util.nearest import ask
from aenv._util.quantity import NUMBER
from aenv._util.unreadable import Unreadable

ALLOWED = 'a duration such as "90s", "30m" or "1h30m" (units h, m, s, ms, us, ns)'

# Both letters for micro: U+00B5 (micro sign) and U+03BC (Greek mu) look the same, and Go takes both.
_UNIT = r"(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
PATTERN = f"^(?:{NUMBER}{_UNIT})+$"

_SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "\u00b5s": Decimal("1e-6"),
    "\u03bcs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_WORDS = dict.fromkeys(("sec", "secs", "second", "seconds"), "s")
_WORDS |= dict.fromkeys(("min", "mins", "minute", "minutes"), "m")
_WORDS |= dict.fromkeys(("hr", "hrs", "hour", "hours"), "h")
_LONGEST_TEXT = 64
# Go counts nanoseconds in 64 bits, so what we accept, every Go program behind us accepts too.
_LONGEST = Decimal(2**63 - 1) / 10**9


def parse_duration(text: str) -> float:
    """Seconds that the text stands for; ValueError if it has a sign, no unit, or a unit longer than an hour."""
    if not _is_duration(text):
        raise Unreadable(text, ALLOWED, _guess(text))
    parts = re.findall(f"({NUMBER})({_UNIT})", text)
    seconds = sum((Decimal(number) * _SECONDS[unit] for number, unit in parts), Decimal(0))
    if seconds > _LONGEST:
        raise Unreadable(text, "a duration below 292 years")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """The shortest Go spelling, to the nanosecond; ValueError for what `parse_duration` could not give back."""
    if not math.isfinite(seconds) or not 0 <= Decimal(seconds) <= _LONGEST:
        raise Unreadable(seconds, "a number of seconds from 0 to 292 years")
    total = round(Decimal(seconds) * 10**9)
    if total < 10**9:
        return _format_below_second(total)
    hours, rest = divmod(total, 3600 * 10**9)
    minutes, rest = divmod(rest, 60 * 10**9)
    parts = [(Decimal(hours), "h"), (Decimal(minutes), "m"), (Decimal(rest) / 10**9, "s")]
    return "".join(f"{_plain(amount)}{unit}" for amount, unit in parts if amount)


def _format_below_second(nanoseconds: int) -> str:
    if nanoseconds == 0:
        return "0s"
    unit, size = next(pair for pair in (("ms", 10**6), ("us", 10**3), ("ns", 1)) if nanoseconds >= pair[1])
    return f"{_plain(Decimal(nanoseconds) / size)}{unit}"


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def _is_duration(text: str) -> bool:
    return len(text) <= _LONGEST_TEXT and re.fullmatch(PATTERN, text) is not None


def _guess(text: str) -> str:
    squeezed = re.sub(r"\s+", "", text[:_LONGEST_TEXT]).lower().lstrip("+-")
    if re.fullmatch(NUMBER, squeezed):
        return ask([f"{squeezed}s", f"{squeezed}m"])
    if days := re.fullmatch(r"([0-9]{1,5})d(?:ays?)?", squeezed):
        return ask([f"{24 * int(days[1])}h"])
    candidate = re.sub(r"[a-z]+", lambda word: _WORDS.get(word[0], word[0]), squeezed)
    return ask([candidate]) if _is_duration(candidate) else ""
