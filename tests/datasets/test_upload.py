"""Test uploads to a local stand-in for the Hugging Face Hub."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from serl.datasets.exchange import push
from serl.errors import SerlError


class Hub(BaseHTTPRequestHandler):
    """Stand-in for the endpoints of the Hugging Face Hub that an upload uses, with its tags."""

    tags: ClassVar[list[str]] = []
    commits = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/preupload/main"):
            files = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for each in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": files})
        if "/commit/" in self.path:
            type(self).commits += 1
        if "/tag/" in self.path:
            tag = f"{json.loads(body)['tag']} at {self.commits}"
            known = [each for each in self.tags if each.split()[0] == tag.split()[0]]
            if not known:
                self.tags.append(tag)
            return self.answer(409 if known else 200, {"error": "exists"})
        home = f"http://{self.headers['Host']}"
        url = f"{home}/datasets/lab/cubes"
        return self.answer(200, {"url": url, "commitUrl": f"{url}/commit/1", "commitOid": "1"})

    def do_DELETE(self) -> None:
        tag = self.path.rpartition("/")[2]
        known = [each for each in self.tags if each.split()[0] == tag]
        self.tags[:] = [each for each in self.tags if each not in known]
        self.answer(200 if known else 404, {})

    def do_GET(self) -> None:
        self.answer(200, {"id": "lab/cubes", "sha": "1", "siblings": []})

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RevisionNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Suppress the request log."""


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_none")
    monkeypatch.setenv("HF_TOKEN", "hf_none")


def test_second_upload_moves_tag(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        for commit in (1, 2):
            (tmp_path / "info.json").write_text(f"{commit}")
            assert push(tmp_path, "lab/cubes", "v3.0", home).endswith("/datasets/lab/cubes")
            assert Hub.tags == [f"v3.0 at {commit}"]
    finally:
        server.shutdown()
        server.server_close()


def test_failed_upload_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("{}")
    with pytest.raises(SerlError, match=r"^lab/cubes: not uploaded: ") as caught:
        push(tmp_path, "lab/cubes", "v3.0", "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)
