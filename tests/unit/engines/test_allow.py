"""Which hosts and addresses a list lets through."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.engines.local.allow import AllowList, is_public, parse_target, settle_host
from aenv.errors import ConfigError

PUBLIC = "93.184.215.14"


def lets(entries: list[str], target: str, address: str | None = None, *, is_host: bool = False) -> bool:
    """Whether `host:port` may be reached, at the address it has or is said to have."""
    wanted = parse_target(target)
    found = ip_address(address) if address is not None else wanted.host
    assert not isinstance(found, str)
    allow = AllowList.parse(entries)
    permitted = allow.permits(wanted, found, is_host=is_host)
    assert allow.may_resolve(wanted) or not permitted
    return permitted


@pytest.mark.parametrize(
    ("entry", "target", "expected"),
    [
        ("pypi.org", "pypi.org:443", True),
        ("pypi.org", "pypi.org:80", True),
        ("PyPI.org.", "pYpI.oRg:443", True),
        ("pypi.org", "pypi.org.:443", True),
        ("pypi.org", "www.pypi.org:443", False),
        ("pypi.org", "notpypi.org:443", False),
        ("pypi.org", "pypi.org.evil.example:443", False),
        ("pypi.org:443", "pypi.org:443", True),
        ("pypi.org:443", "pypi.org:80", False),
        ("*.pypi.org", "files.pypi.org:443", True),
        ("*.pypi.org", "a.b.pypi.org:443", True),
        ("*.pypi.org", "pypi.org:443", False),
        ("*.pypi.org", "evilpypi.org:443", False),
        ("*.pypi.org:443", "files.pypi.org:443", True),
        ("*.pypi.org:443", "files.pypi.org:8443", False),
        ("bücher.example", "xn--bcher-kva.example:80", True),
        ("xn--bcher-kva.example", "BÜCHER.example:80", True),
    ],
)
def test_names_are_compared_as_dns_does(entry: str, target: str, expected: bool) -> None:
    assert lets([entry], target, PUBLIC) is expected


@pytest.mark.parametrize(
    ("entry", "target", "expected"),
    [
        (PUBLIC, f"{PUBLIC}:80", True),
        (f"{PUBLIC}:80", f"{PUBLIC}:80", True),
        (f"{PUBLIC}:80", f"{PUBLIC}:81", False),
        ("10.0.0.0/8", "10.1.2.3:22", True),
        ("10.0.0.0/8", "11.1.2.3:22", False),
        ("10.0.0.0/8", "[::ffff:10.1.2.3]:22", True),
        ("127.0.0.1", "127.0.0.1:22", True),
        ("127.0.0.1", "127.0.0.2:22", False),
        ("::1", "[::1]:22", True),
        ("[::1]:22", "[::1]:22", True),
        ("[::1]:22", "[::1]:23", False),
        ("169.254.169.254", "169.254.169.254:80", True),
        ("2600::/16", "[2600::1]:80", True),
        ("pypi.org", f"{PUBLIC}:80", False),
    ],
)
def test_an_address_is_reached_only_if_an_entry_covers_it(entry: str, target: str, expected: bool) -> None:
    assert lets([entry], target) is expected


CLOSED = [
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "169.254.1.1"),
    *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%lo", "fc00::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
]


@pytest.mark.parametrize("address", CLOSED)
def test_a_name_that_resolves_into_the_host_or_its_network_is_refused(address: str) -> None:
    assert not lets(["pypi.org"], "pypi.org:443", address)


@pytest.mark.parametrize("address", CLOSED)
def test_a_network_wider_than_the_private_ones_does_not_open_them(address: str) -> None:
    assert not lets(["pypi.org", "0.0.0.0/0", "::/0"], "pypi.org:443", address)


def test_a_closed_address_is_open_to_whatever_name_once_it_is_listed() -> None:
    assert lets(["pypi.org", "10.0.0.0/8"], "pypi.org:443", "10.0.0.1")
    assert lets(["10.0.0.0/8"], "unlisted.example:443", "10.0.0.1")
    assert not lets(["pypi.org", "10.0.0.0/8"], "pypi.org:443", "192.168.0.1")


def test_an_address_of_this_machine_is_closed_even_if_it_is_public() -> None:
    assert not lets(["pypi.org"], "pypi.org:443", PUBLIC, is_host=True)
    assert not lets(["0.0.0.0/0"], "pypi.org:443", PUBLIC, is_host=True)
    assert lets([PUBLIC], "pypi.org:443", PUBLIC, is_host=True)


def test_a_translated_address_is_as_public_as_the_one_it_holds() -> None:
    assert is_public(ip_address("64:ff9b::8.8.8.8"))
    assert not is_public(ip_address("64:ff9b::10.0.0.1"))


def test_no_name_server_is_asked_about_a_name_that_cannot_be_allowed() -> None:
    assert not AllowList.parse(["pypi.org", "10.0.0.1:443"]).may_resolve(parse_target("secret.evil.example:80"))
    assert AllowList.parse(["10.0.0.0/8"]).may_resolve(parse_target("intern.example:80"))


def test_an_empty_list_lets_nothing_through() -> None:
    assert not lets([], "pypi.org:443", PUBLIC)


@pytest.mark.parametrize(
    "entry", ["", "*", "*.", "a b", "http://pypi.org", "pypi.org:0", "pypi.org:99999", "*.10.0.0.1"]
)
def test_an_entry_that_is_none_is_named(entry: str) -> None:
    with pytest.raises(ConfigError, match="networkAllow") as caught:
        AllowList.parse(["pypi.org", entry])
    assert repr(entry) in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["", ":", ":80", "pypi.org", "a:b", "a@b:80", "[::1]", "[pypi.org]:80", "a..b:80", "-a:80", "a\n:80", "a:80:90"],
)
def test_a_target_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_target(text)


@given(st.text(max_size=300))
def test_any_text_is_a_host_or_a_value_error(text: str) -> None:
    try:
        host = settle_host(text)
    except ValueError:
        return
    assert settle_host(str(host)) == host
