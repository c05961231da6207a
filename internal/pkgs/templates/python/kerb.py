# SPDX-License-Identifier: Apache-2.0
"""The contract of Kerb's control planes (docs/control-planes.md) in Python's standard library alone.

Packages carry a copy of this file. A control plane is a class with some of these methods, handed to serve():

    compile(config) -> dict        what the data plane needs of a config; raises ConfigError
    fill(maps, config)             writes the maps of a map set that no packet sees yet
    start(maps, config)            from now on packets meet this map set
    health() -> str | None         what is wrong
    metrics() -> list[dict]
    routes = {"/top": method}      method(query: dict) -> anything that JSON can hold

They are called one at a time. maps is a dict of Map by the names in the source; it is good until the next start.
"""

import collections
import ctypes
import http.server
import json
import mmap
import os
import platform
import select
import signal
import socket
import socketserver
import sys
import threading
import urllib.parse

LISTEN_FD, MAPS_FD = 3, 4
PREFIX = "/kerb/v1/"
MAX_MAPS = 253  # descriptors that the kernel passes in one message


class ConfigError(Exception):
    """A mistake in the config, and the place where it is, such as watch[2]."""

    def __init__(self, field, reason):
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


# --- maps, by bpf(2) -------------------------------------------------------------------------------------------------

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_NR_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}[platform.machine()]
_LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _INFO = 1, 2, 3, 4, 15


class _Attr(ctypes.Structure):
    """union bpf_attr, as the operations on elements read it."""

    _fields_ = [("fd", ctypes.c_int32), ("key", ctypes.c_uint64), ("value", ctypes.c_uint64), ("flags", ctypes.c_uint64)]


class _InfoAttr(ctypes.Structure):
    """union bpf_attr, as BPF_OBJ_GET_INFO_BY_FD reads it."""

    _fields_ = [("fd", ctypes.c_uint32), ("size", ctypes.c_uint32), ("info", ctypes.c_uint64)]


class _Info(ctypes.Structure):
    """The beginning of struct bpf_map_info."""

    _fields_ = [(name, ctypes.c_uint32) for name in ("type", "id", "key_size", "value_size", "max_entries", "flags")]


def _bpf(command, attr):
    if _syscall(ctypes.c_long(_NR_BPF), ctypes.c_int(command), ctypes.byref(attr), ctypes.c_uint(ctypes.sizeof(attr))) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Map:
    """A map that has one value for each key: keys and values are bytes."""

    def __init__(self, fd):
        info = _Info()
        _bpf(_INFO, _InfoAttr(fd, ctypes.sizeof(info), ctypes.addressof(info)))
        self.fd, self.max_entries = fd, info.max_entries
        self._key_size, self._value_size = info.key_size, info.value_size

    def close(self):
        os.close(self.fd)
        self.fd = -1  # the number may soon be another map's

    def _key(self, key):
        if len(key) != self._key_size:
            raise ValueError(f"a key has {self._key_size} bytes, not {len(key)}")
        return ctypes.create_string_buffer(key, self._key_size)

    def get(self, key):
        """The value, or None."""
        key, value = self._key(key), ctypes.create_string_buffer(self._value_size)
        try:
            _bpf(_LOOKUP, _Attr(self.fd, ctypes.addressof(key), ctypes.addressof(value)))
        except FileNotFoundError:
            return None
        return value.raw

    def put(self, key, value):
        if len(value) != self._value_size:
            raise ValueError(f"a value has {self._value_size} bytes, not {len(value)}")
        key, value = self._key(key), ctypes.create_string_buffer(value, self._value_size)
        _bpf(_UPDATE, _Attr(self.fd, ctypes.addressof(key), ctypes.addressof(value)))

    def delete(self, key):
        key = self._key(key)
        _bpf(_DELETE, _Attr(self.fd, ctypes.addressof(key)))

    def items(self):
        """All entries. Packets change the map meanwhile: after a key that has just gone, the kernel begins again."""
        found, after = {}, None
        for _ in range(2 * self.max_entries):  # bounds the beginning again
            following = ctypes.create_string_buffer(self._key_size)
            try:
                _bpf(_NEXT_KEY, _Attr(self.fd, ctypes.addressof(after) if after else 0, ctypes.addressof(following)))
            except FileNotFoundError:
                break
            after = following
            value = self.get(after.raw)
            if value is not None:
                found[after.raw] = value
        return found


class Ring:
    """A ring buffer's reader. There must be only one at a time.

    The kernel maps the consumer's position, the producer's position, and the data twice in a row, so that a record that
    runs over the end can be read in one piece. Positions only grow.
    """

    _BUSY, _DISCARDED, _HEADER = 1 << 31, 1 << 30, 8

    def __init__(self, ring):
        page = mmap.PAGESIZE
        self._fd = os.dup(ring.fd)  # of our own: the map set's is closed when another has taken over
        self._mask = ring.max_entries - 1
        consumer = mmap.mmap(self._fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        producer = mmap.mmap(self._fd, page + 2 * ring.max_entries, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._consumer = memoryview(consumer).cast("Q")
        self._producer = memoryview(producer)[:page].cast("Q")
        self._data = memoryview(producer)[page:]
        self._fence = threading.Lock()

    def close(self):
        os.close(self._fd)

    def wait(self, seconds):
        """Returns when there are records, or after so long."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(int(seconds * 1000))

    def read(self):
        """Takes the next record: bytes, or None when there is none yet."""
        while (at := self._consumer[0]) < self._producer[0]:
            self._order()
            offset = at & self._mask
            header = int.from_bytes(self._data[offset : offset + 4], sys.byteorder)
            if header & self._BUSY:  # reserved, not yet submitted
                return None
            self._order()
            size = header & ~self._DISCARDED
            start = offset + self._HEADER
            record = bytes(self._data[start : start + size])
            self._order()
            self._consumer[0] = at + (self._HEADER + size + 7) // 8 * 8
            if not header & self._DISCARDED:
                return record
        return None

    def _order(self):
        """Memory accesses before come before those behind, on CPUs that would swap them too: a lock is a barrier."""
        with self._fence:
            pass


# --- the agent's side ------------------------------------------------------------------------------------------------


class MapSets:
    """The maps that the agent has sent, by map set."""

    def __init__(self):
        self._socket = socket.socket(fileno=MAPS_FD)
        self._maps = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self):
        while True:
            text, fds, _, _ = socket.recv_fds(self._socket, 1 << 16, MAX_MAPS)
            if not text:
                os._exit(0)  # the agent is gone, and nothing is to be finished without it
            message = json.loads(text)
            with self._changed:
                self._maps[message["generation"]] = {name: Map(fd) for name, fd in zip(message["maps"], fds)}
                self._changed.notify_all()

    def get(self, name):
        """The maps of a map set, which may still be on their way."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._maps, timeout=5):
                raise TimeoutError(f"no maps of map set {name} have come")
            return self._maps[name]

    def drop(self, name):
        with self._changed:
            for dropped in self._maps.pop(name, {}).values():
                dropped.close()


class Agent:
    """What the agent asks, done by a control plane."""

    def __init__(self, control):
        self.control = control
        self.map_sets = MapSets()
        self.lock = threading.Lock()

    def answer(self, method, url, body):
        """Status and JSON for a request."""
        parts = urllib.parse.urlsplit(url)
        name = parts.path.removeprefix(PREFIX)
        do = None
        if name != parts.path:
            do = getattr(self, "_" + name, None) if name in self.CALLS.get(method, ()) else None
        elif method == "GET" and parts.path in getattr(self.control, "routes", {}):
            query = dict(urllib.parse.parse_qsl(parts.query))
            do = lambda _: self.control.routes[parts.path](query)
        if do is None:
            return 404, {"reason": f"nothing answers {method} {parts.path}"}
        try:
            with self.lock:
                out = do(json.loads(body) if body else {})
        except ConfigError as e:
            return 422, {"field": e.field, "reason": e.reason}
        except NotImplementedError:
            return 404, {"reason": f"{name} is of no interest here"}
        return out if isinstance(out, tuple) else (200 if out is not None else 204, out)

    CALLS = {"POST": ("compile", "fill", "start", "drop"), "GET": ("health", "metrics")}

    def _compile(self, body):
        return self._optional("compile")(body["config"])

    def _fill(self, body):
        self._optional("fill")(self.map_sets.get(body["generation"]), body["config"])

    def _start(self, body):
        self._optional("start")(self.map_sets.get(body["generation"]), body["config"])

    def _drop(self, body):
        self.map_sets.drop(body["generation"])

    def _health(self, _):
        reason = self._optional("health")()
        return (503, {"reason": reason}) if reason else (200, {})

    def _metrics(self, _):
        return self._optional("metrics")()

    def _optional(self, name):
        method = getattr(self.control, name, None)
        if method is None:
            raise NotImplementedError
        return method


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self):
        unread = "Transfer-Encoding" in self.headers  # would be taken for the next request
        try:
            if unread:
                self.close_connection = True
                status, out = 411, {"reason": "say how long the body is: Content-Length"}
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, out = self.server.agent.answer(self.command, self.path, body)
        except Exception as e:  # any error is reported to the agent, and the process continues
            status, out = (400 if isinstance(e, ValueError) else 500), {"reason": f"{type(e).__name__}: {e}"}
            print(f"{self.command} {self.path}: {e!r}", file=sys.stderr, flush=True)
        text = b"" if out is None else json.dumps(out).encode()
        self.send_response(status)
        if text:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)
        if unread:
            self._linger()

    def _linger(self):
        """Takes what is still being sent, within limits: who cannot write it would not read the answer."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1)
            for _ in range(64):
                if not self.connection.recv(65536):
                    return
        except OSError:
            pass  # the connection ends here anyway

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

    def log_message(self, *_):
        """Requests are no news."""


class _Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_UNIX
    daemon_threads = True

    def __init__(self, agent):
        socketserver.BaseServer.__init__(self, "", _Handler)  # the others make a socket, which the process may not
        self.socket = socket.socket(fileno=LISTEN_FD)
        self.agent = agent


def serve(control):
    """Serves until the agent is gone or SIGTERM comes, which does nothing to a process 1 that does not ask for it."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _Server(Agent(control)).serve_forever()


class Events:
    """Reads a ring buffer in the background and keeps the last records."""

    def __init__(self, keep):
        self.last = collections.deque(maxlen=keep)
        self.seen = 0
        self.error = None
        self._thread = None

    def start(self, ring, keep):
        """Continues with the ring of a map set: the same ring as before, unless its size has changed."""
        self.stop()
        self.last = collections.deque(self.last, maxlen=keep)
        self.error, self._stop = None, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(Ring(ring), self._stop), daemon=True)
        self._thread.start()

    def stop(self):
        if self._thread:
            self._stop.set()
            self._thread.join()

    def _run(self, ring, stop):
        try:
            while not stop.is_set():
                while (record := ring.read()) is not None and not stop.is_set():
                    self.last.append(record)
                    self.seen += 1
                ring.wait(0.2)
        except Exception as e:
            self.error = f"events are not read any more: {e!r}"
        finally:
            ring.close()
