"""Pictures made small, upright, sRGB and free of private metadata before they leave.

Why: models look at 224 x 224 or 336 x 336, and phones send 4000 x 3000, turned by a tag that most resizers drop,
with the place where they were taken. Why not a few lines of Pillow in each project: those clip 16-bit greys to
white, show the colours hidden under transparency, send CMYK, fail on 10000 x 3, decode bombs, block the event loop,
and take 100 MB for each of 64 uploads.

Example::

    client = netkit.AsyncClient(plugins={"image": {"max_size": "336x336", "fit": "smart"}})
    await client.post(url, json={"model": "m", "image": base64_of_a_photo})

Pictures are found in JSON (base64 or data URLs; see `places`), in multipart parts and in raw bodies; everything
around them stays byte for byte what it was, and http(s) URLs are left alone. Formats are told by content, never by
name or declared type. Bodies with a Content-Encoding are not looked into.

One picture: header check (`max_pixels`), draft decode (a JPEG is decoded at a fraction of its size), orientation
applied and removed, crop and shrink (never enlarged, never below one pixel), mode made right, ICC profile to sRGB,
encoded once. A picture that is within all limits leaves as it came, without its metadata, which is cut out without
decoding (JPEG, PNG, WebP, GIF; other formats are encoded anew). The same input gives the same bytes, for one version
of Pillow.

The work runs off the loop, `workers` pictures at a time, and no more at a time than fit in `memory`; in threads the
caller's own thread does it, under the same limits.

Order: outside batch, limit and retry, so that batches are made of small bodies and a retry does not do the work
again; inside cache and coalesce, which then save the work too. A photograph of 12 MP takes some 20 ms and becomes
some 5 kB: on an uplink of 10 Mbit/s that is 25 ms in place of 3 s.
"""

from __future__ import annotations

from netkit import hookimpl
from netkit.hookspecs import Register

try:
    import PIL  # noqa: F401 - the modules below need it; who lacks it is told what to install
except ModuleNotFoundError as error:
    # Still an ImportError: tools that look at every attribute of every module (freezegun) meet `netkit.preprocess`.
    raise ModuleNotFoundError("it needs: pip install 'netkit-http[image]'", name=error.name) from error

from netkit_plugins.image.layer import ImageLayer, ImageStats
from netkit_plugins.image.options import ImageOptions, PictureOptions
from netkit_plugins.image.preprocessing import preprocess
from netkit_plugins.image.result import ProcessedImage

__all__ = [
    "ImageLayer",
    "ImageOptions",
    "ImageStats",
    "PictureOptions",
    "ProcessedImage",
    "netkit_register",
    "preprocess",
]


@hookimpl
def netkit_register(register: Register) -> None:
    register(
        "image",
        ImageLayer,
        options=ImageOptions,
        request_headers=("Content-Type", "Content-Length", "Content-MD5", "Digest", "Content-Digest", "Repr-Digest"),
        summary="Make pictures small, upright, sRGB and free of metadata before they are sent",
    )
