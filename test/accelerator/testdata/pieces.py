# SPDX-License-Identifier: Apache-2.0
"""pieces.py server HOST PORT | client HOST PORT: requests with a length and as many bytes, each answered by a byte.

The client makes some requests, prints "warm" and waits for a line; then it sends a request in 12 pieces, prints "sent",
waits for another line, and prints "answered" if the answer arrives within 3 s, otherwise "nothing". In the latter case
it sends a further request and prints "answered" if both are answered then, otherwise "nothing". No call blocks in
recv, which would end the acceleration.
"""
import socket
import struct
import sys
import threading

LENGTH = struct.Struct("!I")
PIECES, PIECE = 12, b"x" * 100


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            sys.exit("the end")
        data += part
    return data


def serve(connection):
    while True:
        length, = LENGTH.unpack(receive(connection, LENGTH.size))
        receive(connection, length)
        connection.sendall(b"y")


def answered(connection, seconds):
    connection.settimeout(seconds)
    try:
        receive(connection, 1)
    except TimeoutError:
        return False
    return True


def say(word):
    print(word, flush=True)


def ask(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(50):
        connection.sendall(LENGTH.pack(len(PIECE)) + PIECE)
        if not answered(connection, 30):
            sys.exit("no answer to one piece")
    say("warm")
    sys.stdin.readline()
    connection.sendall(LENGTH.pack(PIECES * len(PIECE)))
    for _ in range(PIECES):
        connection.sendall(PIECE)
    say("sent")
    sys.stdin.readline()
    if answered(connection, 3):
        say("answered")
        return
    say("nothing")
    connection.sendall(LENGTH.pack(len(PIECE)) + PIECE)
    say("answered" if answered(connection, 30) and answered(connection, 30) else "nothing")


mode, address = sys.argv[1], (sys.argv[2], int(sys.argv[3]))
if mode == "server":
    with socket.create_server(address) as listener:
        while True:
            accepted, _ = listener.accept()
            accepted.settimeout(3600)
            threading.Thread(target=serve, args=(accepted,), daemon=True).start()
else:
    with socket.create_connection(address) as made:
        ask(made)
