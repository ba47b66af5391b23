"""Serves the JPEGs of a folder as a web with dead links: some addresses are missing, forbidden, silent or break off.

Prints its address once it listens, and serves until it is ended. The first number in a path decides what happens.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from aiohttp import web

# Of 100 addresses: what the server does, and how many.
FAULTS = {"missing": 6, "forbidden": 5, "failing": 2, "broken": 2, "silent": 1, "moved": 4}
NUM_GOOD = 100 - sum(FAULTS.values()) + FAULTS["moved"]


def _fault_of(number: int) -> str:
    place = number % 100
    for fault, count in FAULTS.items():
        if place < count:
            return fault
        place -= count
    return ""


async def _serve(folder: pathlib.Path) -> None:
    images = [path.read_bytes() for path in sorted(folder.iterdir())]

    async def answer(request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["number"])
        fault = _fault_of(number) if request.match_info["kind"] == "image" else ""
        if fault == "silent":
            await asyncio.sleep(3600)
        if fault == "broken":
            assert request.transport is not None
            request.transport.abort()
        if fault == "moved":
            raise web.HTTPFound(f"/target/{number}.jpg")
        if fault in ("missing", "forbidden", "failing"):
            return web.Response(status={"missing": 404, "forbidden": 403, "failing": 503}[fault])
        return web.Response(body=images[number % len(images)], content_type="image/jpeg")

    app = web.Application()
    app.router.add_get(r"/{kind}/{number:\d+}.jpg", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print("http://{}:{}".format(*runner.addresses[0][:2]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(pathlib.Path(sys.argv[1])))
