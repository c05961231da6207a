# SPDX-License-Identifier: Apache-2.0
"""A control plane whose behaviour depends on the mode in its config."""

import ctypes
import json
import os
import sys
import threading
import time

import kerb

PATHS = ("/etc/shadow", "@STATE@", "@STATE@/control/builtin")


class Raw:
    """Strings are sent unencoded, so that responses can be invalid."""

    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(value):
        return value if isinstance(value, str) else json.dumps(value)


kerb.json = Raw


class Control:
    mode = ""  # until start

    def __init__(self):
        self.routes = {"/open": self.open, "/bpf": self.bpf, "/keep": self.keep}

    def compile(self, config):
        if config["mode"] in NONSENSE:
            return NONSENSE[config["mode"]]
        if config["mode"] == "hang-compile":
            time.sleep(3600)
        return {"constants": {"generation": config["generation"]}}

    def start(self, maps, config):
        self.mode = config["mode"]
        do = {"crash": crash, "leak": leak, "flood": flood}.get(self.mode)
        if do:
            threading.Thread(target=do, daemon=True).start()

    def health(self):
        if self.mode == "hang":
            time.sleep(3600)
        if self.mode == "crash":
            crash()  # never healthy, even when asked before the thread runs
        return "feels bad" if self.mode == "sick" else None

    def open(self, query):
        return {path: attempt(lambda: os.listdir(path) if os.path.isdir(path) else open(path).close()) for path in PATHS}

    def keep(self, query):
        return {"kept": attempt(lambda: open(os.environ["STATE_DIRECTORY"] + "/kept", "w").close())}

    def bpf(self, query):
        """BPF_MAP_CREATE is 0, BPF_PROG_LOAD 5; the attributes are those of an array with one value."""
        libc = ctypes.CDLL(None, use_errno=True)
        attr = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
        out = {}
        for name, command in {"map": 0, "program": 5}.items():
            done = libc.syscall(kerb._NR_BPF, command, ctypes.byref(attr), ctypes.sizeof(attr))
            out[name] = "done" if done >= 0 else os.strerror(ctypes.get_errno())
        return out


def attempt(do):
    try:
        do()
    except OSError as e:
        return e.strerror
    return "done"


def crash():
    print("falls over", flush=True)
    os._exit(3)


def leak():
    held = []
    while True:
        held.append(bytearray(b"x" * (1 << 20)))
        time.sleep(0.005)


def flood():
    while True:
        sys.stdout.write("flood " * 1000 + "\n")


NONSENSE = {
    "no-json": "{nonsense",
    "large": '{"constants": {}, "x": "' + "x" * (10 << 20) + '"}',
    "type": {"constants": [1, 2]},
    "text": {"constants": {"generation": "two"}},
    "range": {"constants": {"port": 70000}},
    "unknown": {"constants": {"nothing": 1}},
    "idle": {"idle": ["sideways"]},
    "entries": {"maxEntries": {"nothing": -1}},
}

if __name__ == "__main__":
    kerb.serve(Control())
