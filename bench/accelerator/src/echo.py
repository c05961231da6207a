# SPDX-License-Identifier: Apache-2.0
"""echo.py server HOST PORT | client HOST PORT REQUESTS: 24 bytes with a time stamp, and back, as in Simas 2025.

With the host "unix" the port is the path of a socket.
"""
import json
import math
import socket
import struct
import sys
import threading
import time

MESSAGE = struct.Struct("<QdQ")


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def echo(connection):
    with connection:
        while message := receive(connection, MESSAGE.size):
            connection.sendall(message)


def address(host, port):
    return (socket.AF_UNIX, port) if host == "unix" else (socket.AF_INET, (host, int(port)))


def serve(family, at):
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(at)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def ping(family, at, requests):
    times = []
    with socket.socket(family) as connection:
        connection.connect(at)
        start = time.perf_counter()
        for number in range(requests):
            sent = time.perf_counter()
            message = MESSAGE.pack(number, sent, number)
            connection.sendall(message)
            if receive(connection, MESSAGE.size) != message:
                sys.exit(f"ping {number}: wrong answer")
            times.append((time.perf_counter() - sent) * 1e6)
        seconds = time.perf_counter() - start
    times.sort()
    mean = math.fsum(times) / len(times)
    result = {f"p{p}": times[max(0, math.ceil(len(times) * p / 100) - 1)] for p in (1, 25, 50, 75, 99)}
    result |= {"mean": mean, "stddev": math.sqrt(math.fsum((t - mean) ** 2 for t in times) / len(times))}
    print(json.dumps(result | {"n": requests, "seconds": seconds}))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(*address(*sys.argv[2:4]))
    else:
        ping(*address(*sys.argv[2:4]), int(sys.argv[4]))
