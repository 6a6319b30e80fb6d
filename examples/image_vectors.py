"""Vectors of photographs: the calling code sends what a camera made, the server gets what its model looks at.

Run it: python examples/image_vectors.py
"""

from __future__ import annotations

import asyncio
import base64
import io
import ssl

from PIL import Image

import netkit
from netkit.testing import MockGPU


def photograph(number: int) -> bytes:
    """Stands for a file from a phone: 1600 x 1200, stored turned, with the place where it was taken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.get_ifd(0x8825)[2] = (48.0, 51.0, 29.0)
    picture = Image.radial_gradient("L").rotate(number * 15).resize((1600, 1200))
    target = io.BytesIO()
    Image.merge("RGB", [picture] * 3).save(target, "JPEG", exif=exif)
    return target.getvalue()


async def embed_all(client: netkit.AsyncClient, url: str, photographs: list[bytes]) -> list[list[float]]:
    """One call for each photograph, as a program without netkit would make it."""

    async def embed(content: bytes) -> list[float]:
        image = base64.b64encode(content).decode("ascii")
        answer = await client.post(url, json={"model": "gme", "image": image, "task": "retrieval"})
        vector: list[float] = answer.raise_for_status().json()["data"][0]["embedding"]
        return vector

    return list(await asyncio.gather(*map(embed, photographs)))


async def main() -> None:
    photographs = [photograph(number) for number in range(12)]
    async with MockGPU() as gpu:
        trust = ssl.create_default_context(cafile=gpu.ca_file)
        plugins = {"image": {"max_size": "224x224", "fit": "smart"}}
        async with netkit.AsyncClient(verify=trust, plugins=plugins) as client:
            vectors = await embed_all(client, f"{gpu.url}/gme", photographs)
            stats = netkit.stats(client).image
            print(f"{len(vectors)} vectors of {stats.pictures} photographs")
            print(f"{stats.bytes_in / stats.bytes_out:.0f} times fewer bytes")
    one = netkit.preprocess(photographs[0], max_size="224x224", fit="smart")
    print(f"one of them: {one.size[0]} x {one.size[1]}, {one.mime}")


if __name__ == "__main__":
    asyncio.run(main())
