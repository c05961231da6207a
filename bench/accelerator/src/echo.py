# SPDX-License-Identifier: Apache-2.0
"""echo.py server HOST PORT | client HOST PORT REQUESTS: 24 bytes with a time stamp, and back, as in Simas 2025."""
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


def serve(address):
    with socket.create_server(address) as listener:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()


def ping(address, requests):
    times = []
    with socket.create_connection(address) as connection:
        start = time.perf_counter()
        for number in range(requests):
            sent = time.perf_counter()
            message = MESSAGE.pack(number, sent, number)
            connection.sendall(message)
            if receive(connection, MESSAGE.size) != message:
                sys.exit(f"ping {number} came back wrong")
            times.append((time.perf_counter() - sent) * 1e6)
        seconds = time.perf_counter() - start
    times.sort()
    mean = math.fsum(times) / len(times)
    result = {f"p{p}": times[max(0, math.ceil(len(times) * p / 100) - 1)] for p in (1, 25, 50, 75, 99)}
    result |= {"mean": mean, "stddev": math.sqrt(math.fsum((t - mean) ** 2 for t in times) / len(times))}
    print(json.dumps(result | {"n": requests, "seconds": seconds}))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve((sys.argv[2], int(sys.argv[3])))
    else:
        ping((sys.argv[2], int(sys.argv[3])), int(sys.argv[4]))
