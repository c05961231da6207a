# SPDX-License-Identifier: Apache-2.0
"""Control plane of topports: writes the watched ports, reads counters and events. kerb.py does what is not special to it."""

import ipaddress
import struct

import kerb

# As in topports.bpf.c.
PORT = struct.Struct("=HBx")
COUNT = struct.Struct("=QQ")
EVENT = struct.Struct("=QIIHBB16s4x")
WATCHED_KEY, WATCHED_VALUE = struct.Struct("=H"), b"\1"

PROTOCOLS = {6: "tcp", 17: "udp"}


class TopPorts:
    def __init__(self):
        self.routes = {"/top": self.top, "/events": self.list_events}
        self.maps = {}
        self.events = kerb.Events(keep=1)

    def compile(self, config):
        watch = config.get("watch", [])
        for i, port in enumerate(watch):
            if port in watch[:i]:
                raise kerb.ConfigError(f"watch[{i}]", f"port {port} is there already")
        return {"maxEntries": {"watched": max(len(watch), 1)}}

    def fill(self, maps, config):
        for port in config.get("watch", []):
            maps["watched"].put(WATCHED_KEY.pack(port), WATCHED_VALUE)

    def start(self, maps, config):
        self.events.start(maps["events"], config.get("keep", 1000))
        self.maps = maps

    def health(self):
        return self.events.error

    def metrics(self):
        return [
            {"name": "ports", "help": "Ports with counters.", "value": len(self._counts())},
            {"name": "events_read_total", "help": "Events that were read.", "counter": True, "value": self.events.seen},
        ]

    def top(self, query):
        """GET /top?n=10: the ports with most packets."""
        counts = sorted(self._counts(), key=lambda c: (-c["packets"], c["protocol"], c["port"]))
        return {"ports": counts[: number(query, 10)]}

    def list_events(self, query):
        """GET /events?n=100: the last events, oldest first."""
        return {"read": self.events.seen, "events": [decode(e) for e in list(self.events.last)[-number(query, 100) :]]}

    def _counts(self):
        out = []
        for key, value in self.maps["counts"].items().items() if self.maps else ():
            port, proto = PORT.unpack(key)
            packets, size = COUNT.unpack(value)
            out.append({"protocol": PROTOCOLS[proto], "port": port, "packets": packets, "bytes": size})
        return out


def number(query, default):
    n = int(query.get("n", default))
    if n < 1:
        raise ValueError("n must be at least 1")
    return n


def decode(event):
    time, ifindex, size, port, proto, family, source = EVENT.unpack(event)
    address = ipaddress.ip_address(source[:4] if family == 4 else source)
    return {"time": time, "ifindex": ifindex, "bytes": size, "protocol": PROTOCOLS[proto], "port": port, "source": str(address)}


if __name__ == "__main__":
    kerb.serve(TopPorts())
