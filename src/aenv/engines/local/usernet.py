"""The policy `public` where sandboxes have a network of their own: user-mode networking by slirp4netns or pasta.

The tool joins the sandbox's network namespace, makes one interface there with address, route and name server, and turns
what the sandbox sends into ordinary connections of this machine's user. So a sandbox reaches what that user reaches, by
TCP and UDP, and nobody reaches the sandbox. Closed is the host's loopback: neither 127.0.0.1 nor the gateway leads to
services that listen there only. Open is what listens on this machine's other addresses; the policy `allowlist` closes
that too. The sandbox must not hold CAP_NET_ADMIN or CAP_NET_RAW over its namespace, or it could address packets to the
host's loopback after all.

The tool keeps the namespace alive by its interface, so it cannot see that the last process has gone. It ends with the
descriptor `ends`: whoever watches the sandbox closes the other end, and the kernel does when that one dies. If only the
sandbox's first process holds the other end, the tool ends exactly with the sandbox.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

Tool = Literal["slirp4netns", "pasta"]
"""Best first: slirp4netns takes 3 MB for each sandbox, pasta 31 MB."""

INTERFACE = "tap0"
TRIAL_SECONDS = 5.0

_SERVERS: dict[str, str] = {"slirp4netns": "10.0.2.3", "pasta": "169.254.1.1"}

# pasta knows no descriptor that ends it, so a shell waits for that beside it, and asks who its parent is before it
# kills: the number may be another's by then. Opened by path, as some shells know descriptors of one digit only.
_PASTA = """
exec </dev/null >/dev/fd/$1
{ read -r _ </dev/fd/$2; read -r _ _ _ parent _ </proc/self/stat; [ "$parent" != $$ ] || kill -KILL $$; } >/dev/null &
shift 2
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class UserNet:
    """A tool that gives a network namespace a way out."""

    tool: Tool
    path: str

    def command(self, pid: int, ready: int, ends: int, *, owner: int | None = None) -> list[str]:
        """What to run, with both descriptors inherited, for the network namespace of `pid`, in a child user namespace.

        `owner` is a process in the user namespace that the network namespace belongs to, if `pid` is in another.
        `ready` is a pipe to which some bytes are written once the network is there; the command ends without if that
        fails. `ends` is a pipe to read; when its other end is closed everywhere, the command ends. Both pipes must
        belong to the user who runs it. Close `ends` also after it has ended by itself.
        """
        if self.tool == "slirp4netns":
            return _slirp(self.path, pid, ready, ends, owner or pid)
        return ["/bin/sh", "-c", _PASTA, "pasta", str(ready), str(ends), *_pasta(self.path, pid, owner or pid)]


def resolv_conf(tool: Tool) -> str:
    """The sandbox's /etc/resolv.conf: a server that the tool plays, and asks the host's own for."""
    return f"nameserver {_SERVERS[tool]}\n"


def find() -> UserNet | None:
    """The best tool that is installed and works here, tried in a namespace made for it; takes some milliseconds."""
    for tool in get_args(Tool):
        if (path := shutil.which(tool)) and _works(found := UserNet(tool, path)):
            return found
    return None


def _slirp(path: str, pid: int, ready: int, ends: int, owner: int) -> list[str]:
    # By path: told a process, it would go to that one's user namespace. It shuts itself in by becoming root of the
    # namespace that owns the network, which has none if the sandbox can be copied; root of the machine need not.
    shut_in = ["--enable-sandbox"] if os.geteuid() == 0 else []
    return [
        *(path, "--configure", "--mtu=65520", "--disable-host-loopback", *shut_in, "--enable-seccomp"),
        *(f"--ready-fd={ready}", f"--exit-fd={ends}", f"--userns-path=/proc/{owner}/ns/user"),
        *("--netns-type=path", f"/proc/{pid}/ns/net", INTERFACE),
    ]


def _pasta(path: str, pid: int, owner: int) -> list[str]:
    # Root would become nobody, who may not join; in the sandbox's user namespace it is nobody anyway.
    user = ["--runas", "0"] if os.geteuid() == 0 else []
    closed = [word for option in ("-t", "-u", "-T", "-U") for word in (option, "none")]
    return [
        *(path, "--foreground", "--quiet", *user),
        # Its own number, written when all is configured.
        *("--pid", "/dev/fd/1"),
        *("--config-net", "--ns-ifname", INTERFACE, "--no-map-gw", "--no-dhcp", "--no-dhcpv6", "--no-ra"),
        *("--dns-forward", _SERVERS["pasta"], *closed),
        *("--netns", f"/proc/{pid}/ns/net", "--userns", f"/proc/{owner}/ns/user"),
    ]


def _works(found: UserNet) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            pid = stack.enter_context(_namespace())
        except OSError:
            return False
        heard, ready = os.pipe()
        ends, end = os.pipe()
        tool = subprocess.Popen(
            found.command(pid, ready, ends),
            pass_fds=(ready, ends),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ready)
        os.close(ends)
        try:
            return _hears(heard, tool.pid)
        finally:
            os.close(heard)
            os.close(end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                tool.wait(TRIAL_SECONDS)
            tool.kill()
            tool.wait()


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """A process alone in a user and a network namespace; OSError if the machine gives none."""
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo && exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        # `cat` ends when its input does; leaving this block closes it.
        if not process.stdout.readline():
            raise OSError("no namespace")
        yield process.pid


def _hears(descriptor: int, pid: int) -> bool:
    """Whether anything comes before the process ends, or the time is up."""
    watched = os.pidfd_open(pid)
    try:
        is_ready, _, _ = select.select([descriptor, watched], [], [], TRIAL_SECONDS)
    finally:
        os.close(watched)
    return descriptor in is_ready and os.read(descriptor, 16) != b""
