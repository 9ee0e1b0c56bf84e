"""Under which names a server of this machine may be addressed.

A page of somebody else's may have a domain that resolves to this machine (DNS rebinding). So a server that answers everybody
refuses requests under a name that is neither an address nor its own.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

_PORT = re.compile(r":\d*$")


class Hosts:
    """The names of this machine, and the host that a server was started with: under these it answers."""

    def __init__(self, host: str) -> None:
        self._names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    def is_allowed(self, hosts: Sequence[str]) -> bool:
        """Whether the Host headers of a request are exactly one, with an IP address or a name of this machine."""
        if len(hosts) != 1:
            return False
        name = _PORT.sub("", hosts[0].strip().lower())
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
