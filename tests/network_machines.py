"""Machines that only a network joins: network namespaces of this one, each with an address of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def why_none() -> str | None:
    """What they can't be made for here."""
    if not shutil.which("ip"):
        return "iproute2 isn't installed"
    return None if os.geteuid() == 0 else "network namespaces need root"


class NetworkMachine:
    """One of them."""

    def __init__(self, name: str, bridge: str, address: str) -> None:
        self._name, self.address = name, address
        self._link = f"{name}v"
        _ip("netns", "add", name)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", self._link, "master", bridge, "up")
        for arguments in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", name, *arguments)

    def command(self, *command: str) -> tuple[str, ...]:
        """The same on this machine."""
        return ("ip", "netns", "exec", self._name, *command)

    def cut(self) -> None:
        """Its cable: nothing comes through, and nobody is told."""
        _ip("link", "set", self._link, "down")


@contextmanager
def network(machines: int) -> Iterator[tuple[str, list[NetworkMachine]]]:
    """This machine's address in a network of their own, and them."""
    own = f"pf{os.getpid()}"
    subnet = f"10.213.{os.getpid() % 256}"
    with ExitStack() as stack:
        _ip("link", "add", own, "type", "bridge")
        stack.callback(_ip, "link", "del", own)
        _ip("addr", "add", f"{subnet}.1/24", "dev", own)
        _ip("link", "set", own, "up")
        made = []
        for number in range(2, machines + 2):
            stack.callback(subprocess.run, ["ip", "netns", "del", f"{own}n{number}"], check=False)
            made.append(NetworkMachine(f"{own}n{number}", own, f"{subnet}.{number}"))
        yield f"{subnet}.1", made
