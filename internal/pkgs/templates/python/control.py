# SPDX-License-Identifier: Apache-2.0
"""Control plane of {{.Name}}: turns its config into the map of watched ports, and reads the counters."""

import struct

import kerb

PORT, COUNT = struct.Struct("=H"), struct.Struct("=Q")  # as in {{.Name}}.bpf.c


class Control:
    def __init__(self):
        self.maps = {}  # of the map set that packets meet
        self.routes = {"/packets": self.packets}

    def compile(self, config):
        """What the data plane is to be made with. The config is valid by kerb.yaml; refuse here what a schema cannot."""
        ports = config["ports"]
        for i, port in enumerate(ports):
            if port in ports[:i]:
                raise kerb.ConfigError(f"ports[{i}]", f"port {port} is there already")
        return {"constants": {"drop": config["drop"]}, "maxEntries": {"ports": max(len(ports), 1)}}

    def fill(self, maps, config):
        """Writes the maps of a new map set, before it sees a packet."""
        for port in config["ports"]:
            maps["ports"].put(PORT.pack(port), b"\1")

    def start(self, maps, config):
        """From now on this is what packets meet."""
        self.maps = maps

    def metrics(self):
        return [
            {"name": "packets_total", "help": "Packets to the port.", "counter": True, "labels": {"port": str(port)}, "value": n}
            for port, n in self._counts().items()
        ]

    def packets(self, query):
        """kerb module query NAME packets"""
        return {"packets": [{"port": port, "packets": n} for port, n in sorted(self._counts().items())]}

    def _counts(self):
        entries = self.maps["packets"].items() if self.maps else {}
        return {PORT.unpack(key)[0]: COUNT.unpack(value)[0] for key, value in entries.items()}


if __name__ == "__main__":
    kerb.serve(Control())
