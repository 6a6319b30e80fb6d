"""Starting, stopping, forking, certificates, and the server as a process of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest

from netkit.testing import MockGPU, expected_vector

LOOPS = ["asyncio", "uvloop"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("loop", LOOPS)
async def test_a_caller_who_gives_up_while_it_starts_leaves_no_thread(loop: Any) -> None:
    threads = threading.active_count()

    async def begin() -> None:
        async with MockGPU(tls=False, loop=loop):
            raise AssertionError("it was given up")

    task = asyncio.create_task(begin())
    await asyncio.sleep(0)  # it has begun its thread, and waits
    assert threading.active_count() == threads + 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert threading.active_count() == threads


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [True, False])
def test_twenty_starts_leave_nothing_behind(loop: Any, tls: bool, http1: Any) -> None:
    with MockGPU(tls=tls, loop=loop):  # what the first start imports and opens stays
        pass
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(20):
            with MockGPU(tls=tls, loop=loop) as gpu:
                client = http1(gpu)
                assert client.call("GET", "/health").status == 200
                ca_file = gpu.ca_file
            client.close()
            assert ca_file is None or not os.path.exists(ca_file)
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
    assert threading.active_count() == threads
    assert descriptors() <= before


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_with_work_open_leaves_nothing_behind(loop: Any, http1: Any, http2: Any) -> None:
    with MockGPU(loop=loop) as gpu:
        waiting, streaming = http1(gpu), http2(gpu)
        waiting.request("GET", "/delay/60000")
        stream = streaming.request("GET", "/stream/inf?interval_ms=1")
        streaming.read(lambda c: c.replies[stream].body)
        gpu.log.wait(lambda log: len(log.requests) == 2)
    assert {record.outcome for record in gpu.log.requests} == {"server_closed"}
    assert {record.closed_by for record in gpu.log.connections} == {"server"}
    gpu.close()  # again


async def test_async_with_serves_and_stops() -> None:
    async with MockGPU(tls=False) as gpu:
        reader, writer = await asyncio.open_connection("127.0.0.1", gpu.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await gpu.log.wait_async(lambda log: log.requests[0].outcome == "complete")
        writer.close()
        await writer.wait_closed()
        await gpu.log.wait_async(lambda log: log.connections[0].closed_by == "client")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", gpu.port)


def test_an_address_in_use_is_an_error_and_leaves_no_thread() -> None:
    threads = threading.active_count()
    with MockGPU(tls=False) as gpu:
        taken = MockGPU(tls=False, port=gpu.port)
        with pytest.raises(OSError, match="in use"):
            taken.start()
        taken.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize("wrong", [{"http": "3"}, {"gpus": 0}, {"rtt_ms": -1}, {"max_streams": 0}, {"engine": "x"}])
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MockGPU(**wrong)
    with pytest.raises(TypeError):
        MockGPU(luanch_ms=1)


def test_listening_stops_and_goes_on_at_the_same_port(http1: Any) -> None:
    with MockGPU() as gpu:
        old = http1(gpu)
        assert old.call("GET", "/health").status == 200
        gpu.pause_listening()
        with pytest.raises(ConnectionRefusedError):
            http1(gpu)
        assert old.call("GET", "/health").status == 200
        gpu.resume_listening()
        assert http1(gpu).call("GET", "/health").status == 200


def test_certificate_fits_every_name_asked_for() -> None:
    with MockGPU(hostnames=("gpu.test",)) as gpu:
        context = ssl.create_default_context(cafile=gpu.ca_file)
        for name in ("127.0.0.1", "localhost", "::1", "gpu.test"):
            with socket.create_connection(("127.0.0.1", gpu.port)) as plain:
                with context.wrap_socket(plain, server_hostname=name) as tls:
                    assert tls.getpeercert()
        with socket.create_connection(("127.0.0.1", gpu.port)) as plain:
            with pytest.raises(ssl.SSLCertVerificationError):
                context.wrap_socket(plain, server_hostname="other.test")
        gpu.log.wait(lambda log: log.of_kind("tls_failed") or log.connections[-1].closed)
        names = [record.server_name for record in gpu.log.connections]
        assert names[1] == "localhost"
        assert names[3] == "gpu.test"


def test_distrust_shows_in_the_log_and_no_request_follows() -> None:
    with MockGPU() as gpu:
        with socket.create_connection(("127.0.0.1", gpu.port)) as plain:
            with pytest.raises(ssl.SSLCertVerificationError):
                ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
        gpu.log.wait(lambda log: log.of_kind("tls_failed"))
        assert gpu.log.requests == []
        assert gpu.log.connections[0].tls_error


def test_client_certificate_is_demanded(http1: Any) -> None:
    with MockGPU(client_certificate="required", http="1.1") as gpu:
        assert http1(gpu, client_file=gpu.client_file).call("GET", "/health").status == 200
        assert gpu.log.connections[0].client_certificate
        with pytest.raises((ssl.SSLError, ConnectionError)):
            http1(gpu).call("GET", "/health")
        gpu.log.wait(lambda log: log.of_kind("tls_failed", connection=2))
        assert len(gpu.log.requests) == 1


def test_a_forked_child_does_not_touch_the_parents_server(http1: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 on: fork in a process with threads
        with MockGPU(tls=False) as gpu:
            client = http1(gpu)
            assert client.call("GET", "/health").status == 200
            child = os.fork()
            if child == 0:
                try:
                    gpu.close()
                    signal.pause()
                finally:
                    os._exit(0)
            try:
                assert client.call("GET", "/health").status == 200
                # The child lives on, and FIN still arrives: it holds no copy of the server's descriptors.
                gpu.close_connections("fin")
                assert client.socket.recv(1) == b""
                gpu.pause_listening()
                with pytest.raises(ConnectionRefusedError):
                    http1(gpu)
                gpu.resume_listening()
                assert http1(gpu).call("GET", "/health").status == 200
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def test_a_process_that_forgets_close_ends_all_the_same() -> None:
    code = "from netkit.testing import MockGPU; MockGPU(tls=False).start(); print('started')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\n"


def test_serves_as_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "netkit.testing.mock_gpu", "--no-tls", "--launch-ms", "0", "--settings", "3=7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            assert ready["pid"] == process.pid
            assert ready["ca_file"] is None
            port = int(ready["url"].rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                body = b'{"input":"a"}'
                client.sendall(
                    b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
                answer = b""
                while piece := client.recv(65536):
                    answer += piece
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["data"][0]["embedding"] == expected_vector("a")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
