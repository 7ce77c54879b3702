"""The rule of the policy `allowlist`: which host, port and address a sandbox may reach. Pure; it resolves nothing.

An entry is a name (`pypi.org`), the names below one (`*.pypi.org`, which is not `pypi.org`), or an address or network
(`10.0.0.0/8`); a name or an address may end in `:port`. A name lets through the public addresses that it resolves to.
An address that is not public (loopback, private, link-local, multicast …) or that is this machine's own is let through
only by an entry that means it: the address alone, or a network within such a range. So neither a name nor `0.0.0.0/0`
opens the way into the host or its network. An address or network matches whatever name resolves to it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from aenv.errors import ConfigError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAME_LENGTH = 253
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_AUTHORITY = re.compile(r"(?:\[(?P<six>[^][]*)\]|(?P<host>[^][:/@\s]+))(?::(?P<port>[0-9]{1,5}))?")

# The special-purpose registries of IANA (RFC 6890 and its successors), and the ways to write an IPv4 address as IPv6.
_SPECIAL: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16"),
        *("fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8"),
    )
)
# With DNS64, this is how a host without IPv4 reaches the public IPv4 addresses (RFC 6052).
_TRANSLATED = IPv6Network("64:ff9b::/96")


class Target(NamedTuple):
    """Where a connection is asked to go; `host` is a name as DNS compares them, or an address."""

    host: str | Address
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if isinstance(self.host, IPv6Address) else f"{self.host}:{self.port}"


def parse_target(text: str, default_port: int | None = None) -> Target:
    """`host`, `host:port`, `1.2.3.4:port` or `[::1]:port`; ValueError if it is none of them."""
    host, port = _split(text)
    if (port := port or default_port) is None:
        raise ValueError(f"{text!r} has no port")
    return Target(host, port)


def settle_host(text: str) -> str | Address:
    """The address that this is, else the name in lower case, in ASCII, without its last dot; ValueError if neither."""
    try:
        return settle_address(ip_address(text))
    except ValueError:
        return _settle_name(text)


def settle_address(address: Address) -> Address:
    """An IPv4 address in IPv6 clothes is the IPv4 address, for us as for the kernel; a zone is no part of it."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or IPv6Address(int(address))


def is_public(address: Address) -> bool:
    """Whether it is outside every range that is set apart for hosts, their networks or tests."""
    settled = settle_address(address)
    if isinstance(settled, IPv6Address) and settled in _TRANSLATED:
        return is_public(IPv4Address(int(settled) & 0xFFFF_FFFF))
    return not any(settled in special for special in _SPECIAL)


@dataclass(frozen=True, slots=True)
class AllowList:
    """What `networkAllow` says, parsed. A port of None is any port."""

    names: frozenset[tuple[str, int | None]]
    parents: frozenset[tuple[str, int | None]]
    """The `x.org` of each `*.x.org`."""
    networks: tuple[tuple[Network, int | None], ...]

    @classmethod
    def parse(cls, entries: Iterable[str]) -> AllowList:
        """From the entries of a list; ConfigError names the one that is wrong."""
        names: set[tuple[str, int | None]] = set()
        parents: set[tuple[str, int | None]] = set()
        networks: list[tuple[Network, int | None]] = []
        for entry in entries:
            host, port = _parse_entry(entry)
            if not isinstance(host, str):
                networks.append((host, port))
            elif entry.startswith("*."):
                parents.add((host, port))
            else:
                names.add((host, port))
        return cls(frozenset(names), frozenset(parents), tuple(networks))

    def may_resolve(self, target: Target) -> bool:
        """Whether any address of the target could be permitted; if not, it is no use to ask a name server."""
        if any(named in (None, target.port) for _, named in self.networks):
            return True
        return self.lists(target)

    def permits(self, target: Target, address: Address, *, is_host: bool = False) -> bool:
        """Whether the target may be reached at this address of it; `is_host` says that it is this machine's own."""
        settled = settle_address(address)
        is_open = is_public(settled) and not is_host
        if any(
            named in (None, target.port) and settled in network and (is_open or _is_meant(network))
            for network, named in self.networks
        ):
            return True
        return is_open and self.lists(target)

    def lists(self, target: Target) -> bool:
        """Whether an entry names the target, as a name."""
        if not isinstance(target.host, str):
            return False
        ports = (None, target.port)
        if any((target.host, named) in self.names for named in ports):
            return True
        labels = target.host.split(".")
        above = (".".join(labels[start:]) for start in range(1, len(labels)))
        return any((parent, named) in self.parents for parent in above for named in ports)


def _settle_name(text: str) -> str:
    name = text.removesuffix(".").lower()
    if not name.isascii():
        name = name[: _NAME_LENGTH + 1].encode("idna").decode("ascii")
    if len(name) > _NAME_LENGTH or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{text[:_NAME_LENGTH]!r} is not a host name")
    return name


def _split(text: str) -> tuple[str | Address, int | None]:
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not host:port")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise ValueError(f"{text!r} has no port between 1 and 65535")
    if match["six"] is not None:
        return settle_address(IPv6Address(match["six"])), port
    return settle_host(match["host"]), port


def _parse_entry(entry: str) -> tuple[str | Network, int | None]:
    with contextlib.suppress(ValueError):
        return ip_network(entry, strict=False), None
    try:
        host, port = _split(entry.removeprefix("*."))
        if isinstance(host, str):
            return host, port
        return ip_network(entry if entry.startswith("*.") else host), port
    except ValueError as problem:
        hint = 'write "pypi.org", "*.pypi.org", "pypi.org:443" or "10.0.0.0/8"'
        raise ConfigError(f"networkAllow holds {entry!r}", hint=hint) from problem


def _is_meant(network: Network) -> bool:
    """Whether it names closed addresses on purpose: a single one, or nothing but a special range."""
    return network.num_addresses == 1 or any(_within(network, special) for special in _SPECIAL)


def _within(network: Network, special: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(special, IPv4Network) and network.subnet_of(special)
    return isinstance(special, IPv6Network) and network.subnet_of(special)
