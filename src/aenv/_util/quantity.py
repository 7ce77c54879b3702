"""Amounts of CPU, memory and storage in the spelling of Kubernetes: "500m", "2Gi", "1e3".

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from aenv._util.nearest import ask
from aenv._util.unreadable import Unreadable

ALLOWED = 'a quantity such as "2", "500m", "1.5", "2Gi", "512M" or "1e3"'
ALLOWED_CPU = 'a CPU quantity such as "1", "500m" or "2"'
ALLOWED_BYTES = 'an amount of bytes such as "2Gi", "512Mi" or "2G"'

NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_EXPONENT = r"[eE][+-]?[0-9]{1,3}"
CPU_PATTERN = f"^{NUMBER}[mC]?$"
BYTES_PATTERN = f"^{NUMBER}(?:[KMGTPE]i|[kMGTPE]|{_EXPONENT})?$"

_SCALES = {
    "": Decimal(1),
    **{suffix: Decimal(1).scaleb(-3 * step) for step, suffix in enumerate("mun", start=1)},
    **{suffix: Decimal(1000) ** step for step, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** step for step, suffix in enumerate("KMGTPE", start=1)},
}
_LONGEST_TEXT = 64
_LARGEST = 2**63 - 1
_LEAST_CORES = Decimal("0.001")


def parse_quantity(text: str) -> Decimal:
    """The number that a Kubernetes quantity stands for; ValueError for a sign or a suffix Kubernetes has not."""
    match = re.fullmatch(f"({NUMBER})([KMGTPE]i|[numkMGTPE]|{_EXPONENT}|)", text)
    if match is None or len(text) > _LONGEST_TEXT:
        raise Unreadable(text, ALLOWED, _guess_bytes(text))
    number, suffix = match.groups()
    amount = Decimal(number) * _SCALES[suffix] if suffix in _SCALES else Decimal(text)
    if amount > _LARGEST:
        raise Unreadable(text, "a quantity of at most 2^63-1")
    return amount


def parse_cpu(text: str | float) -> float:
    """Cores. "1C" is an old spelling of "1"; nothing finer than "1m" is a share that an engine can give."""
    return float(_cores(text))


def kubernetes_cpu(text: str | float) -> str:
    """The same share of CPU as Kubernetes writes it: "1C" is "1", "0.5C" is "500m"."""
    thousandths = math.ceil(_cores(text) * 1000)
    whole, rest = divmod(thousandths, 1000)
    return f"{thousandths}m" if rest else str(whole)


def parse_bytes(text: str | int) -> int:
    """Bytes, rounded up. "2G" is 2 * 10**9 and "2Gi" is 2 * 2**30; "500m", half a byte, is refused."""
    written = _as_text(text)
    if re.fullmatch(BYTES_PATTERN, written) is None:
        raise Unreadable(text, ALLOWED_BYTES, _guess_bytes(written))
    return math.ceil(parse_quantity(written))


def _cores(text: str | float) -> Decimal:
    written = _as_text(text)
    if re.fullmatch(CPU_PATTERN, written) is None:
        raise Unreadable(text, ALLOWED_CPU, _guess_cpu(written))
    cores = parse_quantity(written.removesuffix("C"))
    if cores < _LEAST_CORES:
        raise Unreadable(text, 'a CPU quantity of at least "1m"')
    return cores


def _as_text(value: str | float) -> str:
    # In Python True is a number; in a configuration it is a slip.
    return "" if isinstance(value, bool) else str(value)


def _guess_bytes(text: str) -> str:
    if (parts := _split(text)) is None:
        return ""
    number, word = parts
    if re.fullmatch(BYTES_PATTERN, number + word):
        return ask([number + word])
    letter = word[:1].upper()
    return ask([f"{number}{letter.replace('K', 'k')}", f"{number}{letter}i"]) if letter in set("KMGTPE") else ""


def _guess_cpu(text: str) -> str:
    if (parts := _split(text)) is None:
        return ""
    number, word = parts
    if word.lower() in {"m", "milli", "millicores", "millicpu"}:
        return ask([f"{number}m"])
    return ask([number]) if word.lower() in {"", "c", "core", "cores", "cpu", "cpus", "vcpu", "vcpus"} else ""


def _split(text: str) -> tuple[str, str] | None:
    match = re.fullmatch(rf"\s*({NUMBER})\s*([A-Za-z]*)\s*", text[:_LONGEST_TEXT])
    return (match[1], match[2]) if match else None
