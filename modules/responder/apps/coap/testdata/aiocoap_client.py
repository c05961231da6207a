# SPDX-License-Identifier: Apache-2.0
"""Asks the server given for resources by aiocoap, checks each answer, and prints how many the kernel should have given."""

import asyncio
import sys

from aiocoap import CON, GET, NON, Context, Message
from aiocoap.numbers.codes import CONTENT, NOT_FOUND, VALID

HOST = sys.argv[1]


async def ask(client, path, **more):
    return await client.request(Message(code=GET, uri=f"coap://{HOST}/{path}", **more)).response


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
    long = await ask(client, "long")
    assert len(long.payload) == 1024, long
    unknown = await ask(client, "nobody")
    assert unknown.code == NOT_FOUND, unknown
    print(answers + 3)
    await client.shutdown()


asyncio.run(main())
