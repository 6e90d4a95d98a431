"""`rollbook init` finds a real Ray and, with `--find`, real routers, each as what it is, and nothing else."""

import asyncio
import http.server
import os
import threading

import pytest
from support.routers import VllmRouter, running, running_router

from rollbook.adapters.cli.find import PROCESSES, find_ray, find_routers
from rollbook.adapters.cli.main import run
from rollbook.adapters.cli.template import ProxyChoice
from rollbook.adapters.settings import load


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture
def web_server():
    """Something that speaks HTTP, and is no router."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>workers</html>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.router
def test_a_router_is_found_and_written_down(router, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["init", "--fleet", "f", "--find", "--port", str(router.port)], os.environ) == 0
    assert f"routers: sglang-{router.port} at {router.url}" in capsys.readouterr().err
    (proxy,) = load(None, environ={}, cwd=tmp_path).settings.proxies
    assert (proxy.kind, proxy.admin_url, proxy.pools) == ("sglang", router.url, ("rollout",))


@pytest.mark.router
def test_a_router_that_was_told_is_not_written_twice(router, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = f"router-a=sglang@http://localhost:{router.port}/"
    assert run(["init", "--fleet", "f", "--proxy", told, "--find", "--port", str(router.port)], os.environ) == 0
    assert [proxy.name for proxy in load(None, environ={}, cwd=tmp_path).settings.proxies] == ["router-a"]


@pytest.mark.router
def test_what_is_no_router_is_not_found(router, web_server):
    found = asyncio.run(find_routers([web_server.server_port, router.port]))
    assert found == [ProxyChoice(f"sglang-{router.port}", "sglang", router.url)]


@pytest.mark.router
def test_a_vllm_router_is_not_taken_for_the_one_that_it_was_made_from(router, tmp_path):
    with running(VllmRouter(tmp_path)) as vllm:
        found = asyncio.run(find_routers([vllm.port, router.port]))
    assert found == [
        ProxyChoice(f"vllm-{vllm.port}", "vllm", vllm.url),
        ProxyChoice(f"sglang-{router.port}", "sglang", router.url),
    ]


@pytest.mark.ray
def test_a_ray_that_runs_here_is_found(local_ray):
    """Others may run on this machine too."""
    assert local_ray in find_ray({}, PROCESSES)
