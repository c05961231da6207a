# SPDX-License-Identifier: Apache-2.0
"""Asks the server given for resources by aiocoap, checks each answer, and prints how many the kernel should have given."""

import asyncio
import sys

from aiocoap import CON, GET, NON, Context, Message
from aiocoap.numbers.codes import CONTENT, NOT_FOUND, UNAUTHORIZED, VALID
from aiocoap.numbers.constants import TransportTuning
from aiocoap.optiontypes import OpaqueOption

HOST, PADDING = sys.argv[1:]


class Patient(TransportTuning):
    """Nothing is sent again, and answered once more, on a machine that is busy for some seconds."""

    ACK_TIMEOUT = 20


def echo_of(message):
    """The value of the Echo option (RFC 9175), which aiocoap knows in new versions by name only."""
    return next(o.value if isinstance(o, OpaqueOption) else o.encode() for o in message.opt.option_list() if int(o.number) == 252)


async def ask(client, path, echo=None, **more):
    message = Message(code=GET, uri=f"coap://{HOST}/{path}", transport_tuning=Patient(), **more)
    if echo is not None:
        message.opt.add_option(OpaqueOption(252, echo))
    if PADDING:
        message.opt.add_option(OpaqueOption(2048, PADDING.encode()))
    return await client.request(message).response


async def main():
    client = await Context.create_client_context()
    first = await ask(client, "sensors/temp", mtype=CON)
    assert first.code == CONTENT and first.payload == b'{"v":21.5}', first
    assert first.opt.content_format == 50 and first.opt.max_age == 30 and len(first.opt.etag) == 8, first.opt
    answers = 1
    for _ in range(50):
        for mtype in CON, NON:
            again = await ask(client, "sensors/temp", mtype=mtype)
            assert again.payload == first.payload and again.opt.etag == first.opt.etag, again
            answers += 1
    valid = await ask(client, "sensors/temp", etags=[b"another", first.opt.etag])
    assert valid.code == VALID and valid.payload == b"" and valid.opt.etag == first.opt.etag, valid
    accepted = await ask(client, "sensors/temp", accept=50)
    assert accepted.payload == first.payload, accepted
    if not PADDING:
        challenge = await ask(client, "long")
        assert challenge.code == UNAUTHORIZED and len(echo_of(challenge)) == 8, challenge
        long = await ask(client, "long", echo=echo_of(challenge))
        assert long.code == CONTENT and len(long.payload) == 1024, long
        forged = await ask(client, "long", echo=bytes(8))
        assert forged.code == UNAUTHORIZED, forged
        answers += 3
    unknown = await ask(client, "nobody")
    assert unknown.code == NOT_FOUND, unknown
    print(answers + 2)
    await client.shutdown()


asyncio.run(main())
