"""`install` and processes: prefork servers, installs and uninstalls in children, pickles, odd imports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netkit.testing import MockGPU
from tests.patching.conftest import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

APPLICATION = """
import os, requests

session = requests.Session()
session.verify = {ca!r}
# In the master, before it forks: workers inherit an open connection that is not theirs.
assert session.post({url!r}, json={{"model": "m", "input": "x"}}).raw.version == 20

def application(environ, start_response):
    answer = session.post({url!r}, json={{"model": "m", "input": "x"}})
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{{os.getpid()}} {{answer.raw.version}}".encode()]
"""


def _fetch(path: str) -> str:
    """One GET over a Unix socket; waits for the server to listen."""
    deadline = time.monotonic() + 60
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            try:
                connection.connect(path)
            except OSError:
                assert time.monotonic() < deadline, "gunicorn does not listen"
                time.sleep(0.02)
                continue
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            received = b""
            while chunk := connection.recv(65536):
                received += chunk
            return received.partition(b"\r\n\r\n")[2].decode()


def test_gunicorn_with_preload(gpu: MockGPU, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    code = APPLICATION.format(ca=str(gpu.ca_file), url=f"{gpu.url}/v1/embeddings")
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    bound = str(tmp_path / "g.sock")
    before = len(gpu.log.requests)
    command = [sys.executable, "-m", "netkit.cli", "run", "-m", "gunicorn", "--preload", "--workers", "2"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--bind", f"unix:{bound}", "app:application"],
            cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            answers = [_fetch(bound).split() for _ in range(12)]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    assert {version for _, version in answers} == {"20"}, (tmp_path / "log").read_text()
    workers = {pid for pid, _ in answers}
    seen = gpu.log.requests[before:]
    assert len(seen) == 13
    # The master's connection carried the master's request alone; each worker opened its own.
    assert sum(request.connection == seen[0].connection for request in seen) == 1
    assert len({request.connection for request in seen}) == 1 + len(workers)


def test_uninstall_in_a_child_leaves_the_parent(program: Program) -> None:
    program("""
        import os, requests, netkit
        netkit.install()
        session = requests.Session()
        session.verify = CA
        assert session.post(EMBED, json=BODY).raw.version == 20
        child = os.fork()
        if child == 0:
            code = 1
            try:
                netkit.uninstall()
                assert requests.Session is not netkit.Session
                with requests.Session() as plain:
                    plain.verify = CA
                    assert plain.post(EMBED, json=BODY).raw.version == 11
                # Made while it was installed: netkit's until it is dropped.
                assert session.post(EMBED, json=BODY).raw.version == 20
                netkit.install()
                netkit.install()
                assert requests.Session is netkit.Session
                assert requests.post(EMBED, json=BODY, verify=CA).raw.version == 20
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert requests.Session is netkit.Session
        assert session.post(EMBED, json=BODY).raw.version == 20
        session.close()
    """)


def test_pickles_cross_install_and_uninstall(program: Program) -> None:
    program("""
        import pickle, copy, requests, netkit
        with requests.Session() as before:
            before.verify = CA
            before.headers["X-Mine"] = "1"
            native = pickle.dumps(before)
            netkit.install()
            made = pickle.loads(native)
            assert type(made) is netkit.Session and made.headers["X-Mine"] == "1"
            assert made.post(EMBED, json=BODY).raw.version == 20
            ours = pickle.dumps(made)
            again = pickle.loads(ours)
            assert again.post(EMBED, json=BODY).raw.version == 20
            adopted = pickle.loads(pickle.dumps(before))
            assert adopted.post(EMBED, json=BODY).raw.version == 20
            for session in (made, again, adopted):
                session.close()
            netkit.uninstall()
            assert type(pickle.loads(native)) is requests.Session
            late = pickle.loads(ours)
            assert type(late) is netkit.Session, "it says what it is"
            assert late.post(EMBED, json=BODY).raw.version == 20
            late.close()
            assert type(before) is requests.Session and pickle.dumps(before) == native
    """)


def test_celerys_prefork_pool(program: Program) -> None:
    """billiard is what celery's prefork workers are made of: its pool, after calls of the parent's own."""
    program("""
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it imports is not ours
            from billiard import get_context
        import os, requests, netkit
        netkit.install()
        shared = requests.Session()
        shared.verify = CA
        assert shared.post(EMBED, json=BODY).raw.version == 20
        def task(number):
            with requests.Session() as own:
                versions = [session.post(EMBED, json=BODY, verify=CA).raw.version for session in (shared, own)]
            return os.getpid(), versions, netkit.stats(shared).requests.in_flight
        pool = get_context("fork").Pool(2)
        try:
            done = pool.map(task, range(8), chunksize=1)
        finally:
            pool.close()
            pool.join()
        assert os.getpid() not in {pid for pid, _, _ in done}
        assert {(tuple(versions), flying) for _, versions, flying in done} == {((20, 20), 0)}
        assert shared.post(EMBED, json=BODY).raw.version == 20
        shared.close()
    """)


def test_multiprocessing(program: Program) -> None:
    program("""
        import multiprocessing, requests, netkit
        netkit.install()
        def version(number):
            with requests.Session() as session:
                return session.post(EMBED, json=BODY, verify=CA).raw.version
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(version, range(6)) == [20] * 6
            pool.close()
            pool.join()
    """)


def test_a_stack_from_a_zip_and_a_lazy_one(program: Program, tmp_path: Path) -> None:
    zipped = tmp_path / "stack.zip"
    making = f"""
        import zipfile, pathlib, requests
        folder = pathlib.Path(requests.__file__).parent
        with zipfile.ZipFile({str(zipped)!r}, "w") as archive:
            for path in sorted(folder.glob("*.py")):
                archive.write(path, "requests/" + path.name)
    """
    program(making)
    program(f"""
        sys.path.insert(0, {str(zipped)!r})
        import netkit
        netkit.install()
        import requests
        assert ".zip" in requests.__file__ and type(requests.__loader__).__name__ == "zipimporter"
        assert requests.Session is netkit.Session
        assert requests.post(EMBED, json=BODY, verify=CA).raw.version == 20
    """)
    for installed in ("before", "after"):
        program(f"""
            import importlib.util, netkit
            if {installed!r} == "before":
                netkit.install()
            spec = importlib.util.find_spec("requests")
            spec.loader = importlib.util.LazyLoader(spec.loader)
            module = importlib.util.module_from_spec(spec)
            sys.modules["requests"] = module
            spec.loader.exec_module(module)
            if {installed!r} == "after":
                netkit.install()
            assert module.Session is netkit.Session
            assert module.post(EMBED, json=BODY, verify=CA).raw.version == 20
            netkit.uninstall()
            assert module.Session is not netkit.Session
        """)


@pytest.mark.parametrize("when", ["before", "after"])
def test_httpx2_in_the_place_of_httpx(program: Program, when: str) -> None:
    program(f"""
        import ssl, httpx2, netkit
        if {when!r} == "before":
            httpx2.alias_httpx()
        netkit.install()
        if {when!r} == "after":
            httpx2.alias_httpx()
        import httpx
        assert httpx.Client is httpx2.Client is netkit.httpx2.Client
        with httpx.Client(verify=ssl.create_default_context(cafile=CA)) as client:
            assert client.post(EMBED, json=BODY).http_version == "HTTP/2"
            assert netkit.stats(client).requests.total == 1
        netkit.uninstall()
        assert httpx.Client is httpx2.Client is not netkit.httpx2.Client
    """)


def test_installing_imports_no_stack(program: Program) -> None:
    program("""
        import netkit
        netkit.install()
        stacks = {"requests", "urllib3", "httpx", "httpx2", "httpcore", "httpcore2", "aiohttp"}
        assert not stacks & set(sys.modules), sorted(stacks & set(sys.modules))
    """)
