"""Pictures stored elsewhere: in a real S3 server, by PUT, and by a function; and what happens when that fails."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from netkit_plugins.image import ImageLayer, ImageOptions, ProcessedImage
from netkit_plugins.image.upload import MAX_KNOWN, Shelf, filled, public_url, store

import netkit
from netkit import Body, Context, ImageError, Request, Response
from netkit.events import Emitter
from netkit.runtime import Scripted
from netkit.stats import Meter
from netkit.testing import MockGPU, expected_vector
from netkit.testing.mock_gpu import Answer, Exchange

PICTURE = ProcessedImage(b"\xff\xd8\xff picture", "image/jpeg", (1, 1), 100, True)


@pytest.fixture
def photo(pictures: Any) -> bytes:
    data: bytes = pictures.encoded(pictures.scene((600, 400)), "PNG")
    return data


# A real S3 server.


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[Any, str]]:
    """A client of an S3 server in this process, and the server's URL."""
    import boto3
    from botocore.config import Config
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, proxies={}),
    )
    client.create_bucket(Bucket="pictures")
    client.create_bucket(Bucket="public")
    allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::public/*"}
    client.put_bucket_policy(Bucket="public", Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
    yield client, url
    client.close()
    server.stop()


def fetching(exchange: Exchange) -> Answer:
    """A GPU that fetches the picture whose URL it is given, and says what it found."""
    payload = json.loads(exchange.content)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(payload["image_url"], timeout=10) as answer:
        content = answer.read()
        kind = answer.headers["Content-Type"]
    return Answer.json({"embedding": expected_vector(content), "type": kind, "keys": sorted(payload)})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_s3_by_presigned_urls(bucket: Any, photo: bytes) -> None:
    client, _ = bucket
    stored: list[str] = []

    def upload(picture: ProcessedImage) -> str:
        import hashlib

        key = hashlib.sha256(picture.bytes).hexdigest()
        where = {"Bucket": "pictures", "Key": key}
        target = client.generate_presigned_url("put_object", Params={**where, "ContentType": picture.mime})
        request = urllib.request.Request(target, picture.bytes, {"Content-Type": picture.mime}, method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()
        stored.append(key)
        return str(client.generate_presigned_url("get_object", Params=where))

    with MockGPU(tls=False) as gpu, netkit.Session(plugins={"image": {"upload": upload}}) as session:
        gpu.route("/gme", fetching)
        for _ in range(2):
            answer = session.post(f"{gpu.url}/gme", json={"model": "m", "image": base64.b64encode(photo).decode()})
            expected = netkit.preprocess(photo)
            assert answer.json() == {
                "embedding": expected_vector(expected.bytes),
                "type": "image/jpeg",
                "keys": ["image_url", "model"],
            }
        assert netkit.stats(session).image.stored == 1
    assert len(stored) == 1
    assert client.get_object(Bucket="pictures", Key=stored[0])["Body"].read() == expected.bytes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_s3_by_a_url_template(bucket: Any, photo: bytes) -> None:
    _, url = bucket
    options = {"upload": url + "/public/{sha256}.{extension}?sig=SECRET"}
    async with MockGPU(tls=False) as gpu, netkit.AsyncClient(plugins={"image": options}) as client:
        gpu.route("/gme", fetching)
        answer = await client.post(f"{gpu.url}/gme", json={"image": base64.b64encode(photo).decode()})
        expected = netkit.preprocess(photo)
        assert answer.json()["embedding"] == expected_vector(expected.bytes)
        (seen,) = gpu.log.requests
        sent = seen.json()["image_url"]
        assert sent.startswith(f"{url}/public/")
        assert sent.endswith(".jpg")
        assert "SECRET" not in sent


# PUT by hand: what the storage sees.


@pytest.fixture
def storage() -> Iterator[MockGPU]:
    with MockGPU(tls=False) as gpu:
        gpu.route("/put/*", lambda exchange: Answer.text("stored", 201))
        yield gpu


def test_a_put_carries_the_picture_and_nothing_of_the_call(storage: MockGPU) -> None:
    host = storage.url.removeprefix("http://")
    options = ImageOptions(
        upload=f"http://me:pa%40ss@{host}/put/{{sha256}}.{{extension}}?sig=SECRET",
        upload_url="https://cdn.test/{sha256}",
    )
    assert store(PICTURE, "abc", options) == "https://cdn.test/abc"
    (seen,) = storage.log.requests
    assert (seen.method, seen.target, seen.body) == ("PUT", "/put/abc.jpg?sig=SECRET", PICTURE.bytes)
    assert seen.header("content-type") == "image/jpeg"
    assert seen.header("authorization") == "Basic " + base64.b64encode(b"me:pa@ss").decode()
    plain = ImageOptions(upload=options.upload)
    assert store(PICTURE, "abc", plain) == f"http://{host}/put/abc.jpg"


@pytest.mark.parametrize("status", [301, 403, 500])
def test_a_storage_that_refuses(storage: MockGPU, status: int) -> None:
    storage.route(
        "/put/*", lambda exchange: Answer(status, [("location", f"{storage.url}/elsewhere")], b"SECRET in the answer")
    )
    options = ImageOptions(upload=f"{storage.url}/put/{{sha256}}?sig=SECRET")
    with pytest.raises(ImageError, match=f"status {status}") as caught:
        store(PICTURE, "abc", options)
    assert "SECRET" not in str(caught.value)
    assert [request.path for request in storage.log.requests] == ["/put/abc"]


def test_a_storage_that_is_not_there() -> None:
    with MockGPU(tls=False) as gone:
        url = gone.url
    with pytest.raises(ImageError, match="ConnectionRefusedError") as caught:
        store(PICTURE, "abc", ImageOptions(upload=f"{url}/{{sha256}}?sig=SECRET"))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("returned", [None, "", "file:///etc/passwd", "/relative", b"http://a"])
def test_a_function_must_return_a_url(returned: Any) -> None:
    with pytest.raises(ImageError, match="must return"):
        store(PICTURE, "abc", ImageOptions(upload=lambda picture: returned))


def test_a_function_that_fails() -> None:
    def upload(picture: ProcessedImage) -> str:
        raise OSError("SECRET")

    with pytest.raises(ImageError, match="upload failed: OSError") as caught:
        store(PICTURE, "abc", ImageOptions(upload=upload))
    assert isinstance(caught.value.__cause__, OSError)
    assert "SECRET" not in str(caught.value)


def test_urls() -> None:
    assert filled("https://a/{sha256}/{other}.{extension}", "ab", "png") == "https://a/ab/{other}.png"
    assert public_url("https://u:p@a.test:8443/x/y.png?sig=1#f") == "https://a.test:8443/x/y.png"


# Once per content.


class Storage:
    """A function for `upload` that counts, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, picture: ProcessedImage) -> str:
        with self._lock:
            self.calls += 1
            if self.failures:
                self.failures -= 1
                raise OSError("down")
            return f"https://s.test/{self.calls}"


def test_callers_of_one_content_share_one_store() -> None:
    runtime, storage = Scripted(), Storage()
    shelf = Shelf(ImageOptions(upload=storage))
    tasks = [runtime.task(shelf.url_of(PICTURE, runtime)) for _ in range(5)]
    runtime.run_to_end()
    assert {task.result() for task in tasks} == {"https://s.test/1"}
    assert (storage.calls, shelf.stored, shelf.storing) == (1, 1, 0)


def test_when_the_one_that_stores_fails_the_next_one_tries() -> None:
    runtime, storage = Scripted(), Storage(failures=1)
    shelf = Shelf(ImageOptions(upload=storage))
    tasks = [runtime.task(shelf.url_of(PICTURE, runtime)) for _ in range(4)]
    runtime.run_to_end()
    with pytest.raises(ImageError):
        tasks[0].result()
    assert [task.result() for task in tasks[1:]] == ["https://s.test/2"] * 3
    assert (storage.calls, shelf.storing) == (2, 0)


@pytest.mark.parametrize("victim", range(3))
def test_cancelled_at_every_wait(victim: int) -> None:
    for step in range(5):
        runtime, storage = Scripted(), Storage()
        shelf = Shelf(ImageOptions(upload=storage))
        tasks = [
            runtime.task(shelf.url_of(PICTURE, runtime), cancel_at=step if number == victim else None)
            for number in range(3)
        ]
        runtime.run_to_end()
        others = [task.result() for number, task in enumerate(tasks) if number != victim]
        assert len(set(others)) == 1
        assert shelf.storing == 0


def test_a_url_is_used_until_it_is_too_old() -> None:
    runtime, storage = Scripted(), Storage()
    shelf = Shelf(ImageOptions(upload=storage, upload_ttl=60.0))

    def url() -> str:
        task = runtime.task(shelf.url_of(PICTURE, runtime))
        runtime.run()
        return str(task.result())

    assert url() == "https://s.test/1"
    runtime.advance(59.0)
    assert url() == "https://s.test/1"
    runtime.advance(1.0)
    assert url() == "https://s.test/2"
    for_ever = Shelf(ImageOptions(upload=storage, upload_ttl=None))
    task = runtime.task(for_ever.url_of(PICTURE, runtime))
    runtime.advance(10**9)
    again = runtime.task(for_ever.url_of(PICTURE, runtime))
    runtime.run()
    assert again.result() == task.result()


def test_what_is_remembered_is_bounded() -> None:
    runtime = Scripted()
    shelf = Shelf(ImageOptions(upload=lambda picture: "https://s.test/x"))
    for number in range(MAX_KNOWN + 10):
        runtime.task(shelf.url_of(ProcessedImage(b"%d" % number, "image/png", (1, 1), 1, True), runtime))
    runtime.run_to_end()
    assert len(shelf._known) == MAX_KNOWN


def test_threads_share_one_store() -> None:
    from netkit.flow import run_sync
    from netkit.runtime import Threads

    storage = Storage()
    shelf = Shelf(ImageOptions(upload=storage))
    urls: list[str] = []
    threads = [
        threading.Thread(target=lambda: urls.append(run_sync(shelf.url_of(PICTURE, Threads())))) for _ in range(64)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert urls == ["https://s.test/1"] * 64
    assert storage.calls == 1


def call(payload: Any, **options: Any) -> tuple[Any, Any, ImageLayer]:
    """One call through a layer: the task, what was sent, the layer."""
    runtime = Scripted()
    layer = ImageLayer(ImageOptions(**options), Context(runtime=runtime, emit=Emitter(), stack="x", meter=Meter()))
    sent: list[Any] = []

    async def send(request: Request) -> Response:
        sent.append(json.loads(request.body.content or b"null"))
        return Response.of(200)

    body = Body.of(json.dumps(payload).encode())
    task = runtime.task(layer(Request("POST", "http://g/", [("Content-Type", "application/json")], body), send))
    runtime.run_to_end()
    return task, sent, layer


def test_urls_stand_where_pictures_stood(photo: bytes, pictures: Any) -> None:
    text = base64.b64encode(photo).decode()
    url = "https://s.test/1"
    payload = {
        "messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + text}}]}],
        "inputs": [{"image": text}, "words", text],
        "data": [{"blob": text}],
    }
    _, sent, layer = call(payload, upload=Storage())
    assert sent == [
        {
            "messages": [{"content": [{"type": "image_url", "image_url": {"url": url}}]}],
            "inputs": [{"image_url": url}, "words", url],
            "data": [{"uri": url}],
        }
    ]
    assert layer.stats().stored == 1
    small = base64.b64encode(pictures.encoded(pictures.halves(), "JPEG")).decode()
    assert call({"image": small}, upload=Storage())[1] == [{"image_url": url}]


def test_without_storage_the_call_fails_or_carries_the_picture(photo: bytes) -> None:
    payload = {"image": base64.b64encode(photo).decode()}
    task, sent, layer = call(payload, upload=Storage(failures=9))
    with pytest.raises(ImageError, match="image: upload failed"):
        task.result()
    assert sent == []
    assert layer.stats().failed == 1
    _, sent, _ = call(payload, upload=Storage(failures=9), on_error="pass")
    assert base64.b64decode(sent[0]["image"]) == netkit.preprocess(photo).bytes


@pytest.mark.parametrize("off", [False, "off"])
def test_off(photo: bytes, off: Any) -> None:
    _, sent, layer = call({"image": base64.b64encode(photo).decode()}, upload=off)
    assert base64.b64decode(sent[0]["image"]) == netkit.preprocess(photo).bytes
    assert layer.stats().stored == 0
