"""Test uploads to a local stand-in for the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from serl.cli.main import main
from serl.datasets.exchange import push
from serl.errors import SerlError
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task

from ..support.command import SERL
from .test_exchange import record

PAGE = Path(__file__).parents[2] / "docs/howto/export.md"


class Hub(BaseHTTPRequestHandler):
    """Stand-in for the endpoints of the Hugging Face Hub that an upload uses, with its tags."""

    tags: ClassVar[list[str]] = []
    files: ClassVar[set[str]] = set()
    tokens: ClassVar[set[str | None]] = set()
    commits = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tokens.add(self.headers["Authorization"])
        if self.path.endswith("/preupload/main"):
            files = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for each in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": files})
        if "/commit/" in self.path:
            type(self).commits += 1
            operations = [json.loads(line) for line in body.splitlines()]
            self.files.update(o["value"]["path"] for o in operations if o["key"] == "file")
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


@pytest.fixture
def hub() -> Iterator[str]:
    """Serve an empty Hub; yield its address."""
    Hub.commits = 0
    for kept in (Hub.tags, Hub.files, Hub.tokens):
        kept.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def page_command(run: Path) -> list[str]:
    """Return the words of the page's upload of a run, without `serl`."""
    (line,) = re.findall(r"^serl (export .* --push-to-hub .*)$", PAGE.read_text(), re.MULTILINE)
    return shlex.split(line.replace("$RUN", str(run)))


def test_second_upload_moves_tag(tmp_path: Path, hub: str) -> None:
    for commit in (1, 2):
        (tmp_path / "info.json").write_text(f"{commit}")
        assert push(tmp_path, "lab/cubes", "v3.0", hub).endswith("/datasets/lab/cubes")
        assert Hub.tags == [f"v3.0 at {commit}"]


def test_export_command_of_page_uploads_data_set(tmp_path: Path, hub: str) -> None:
    record(tmp_path / "run", make_spec(make_task(resolve({"task": "pick_cube"}))))
    words = [*SERL, *page_command(tmp_path / "run")]
    environ = {**os.environ, "HF_ENDPOINT": hub}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.endswith(f"uploaded: {hub}/datasets/lab/cubes\n"), done.stderr
    written = [path for path in (tmp_path / "cubes").rglob("*") if path.is_file()]
    assert {str(path.relative_to(tmp_path / "cubes")) for path in written} == Hub.files
    assert "meta/info.json" in Hub.files
    assert (Hub.tags, Hub.tokens) == (["v3.0 at 1"], {"Bearer hf_none"})


def test_upload_without_package_names_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(page_command(tmp_path)) == 2
    error = capsys.readouterr().err
    assert error == "serl: huggingface_hub is not installed: pip install 'serl[export]'\n"
    assert not (tmp_path / "cubes").exists()


def test_failed_upload_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("{}")
    with pytest.raises(SerlError, match=r"^lab/cubes: not uploaded: ") as caught:
        push(tmp_path, "lab/cubes", "v3.0", "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)
