"""Test uploads to a local stand-in for the Hugging Face Hub."""

from __future__ import annotations

import base64
import hashlib
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
from typing import Any, ClassVar

import pytest

from serl.cli.main import main
from serl.datasets.export import push
from serl.errors import SerlError

from ..support.command import SERL
from .test_exchange import pixel_spec, record

PAGE = Path(__file__).parents[2] / "docs/howto/export.md"
LARGE = (".mp4", ".parquet")


class Hub(BaseHTTPRequestHandler):
    """Stand-in for the endpoints of the Hugging Face Hub that an upload uses, with its tags.

    Films and tables are stored as large files (Git LFS), as by the Hub.
    """

    tags: ClassVar[list[str]] = []
    repositories: ClassVar[list[dict[str, Any]]] = []
    files: ClassVar[dict[str, bytes]] = {}
    large: ClassVar[dict[str, bytes]] = {}
    tokens: ClassVar[set[str | None]] = set()
    commits = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tokens.add(self.headers["Authorization"])
        home = f"http://{self.headers['Host']}"
        if self.path.endswith("/preupload/main"):
            return self.answer(200, {"files": list(map(upload_mode, json.loads(body)["files"]))})
        if self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{home}/large/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if "/commit/" in self.path:
            type(self).commits += 1
            for operation in map(json.loads, body.splitlines()):
                self.commit(operation["key"], operation["value"])
        if "/tag/" in self.path:
            return self.tag(json.loads(body)["tag"])
        if self.path.endswith("/repos/create"):
            self.repositories.append(json.loads(body))
        url = f"{home}/datasets/lab/cubes"
        return self.answer(200, {"url": url, "commitUrl": f"{url}/commit/1", "commitOid": "1"})

    def do_PUT(self) -> None:
        self.large[self.path.rpartition("/")[2]] = self.rfile.read(
            int(self.headers["Content-Length"])
        )
        self.answer(200, {})

    def commit(self, key: str, value: dict[str, str]) -> None:
        """Store a committed file; a large one must have been uploaded."""
        if key == "file":
            self.files[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            self.files[value["path"]] = self.large[value["oid"]]

    def tag(self, name: str) -> None:
        """Add a tag to the last commit, unless it is there."""
        known = [each for each in self.tags if each.split()[0] == name]
        if not known:
            self.tags.append(f"{name} at {self.commits}")
        self.answer(409 if known else 200, {"error": "exists"})

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


def upload_mode(file: dict[str, str]) -> dict[str, Any]:
    """Return how the Hub wants a file."""
    mode = "lfs" if file["path"].endswith(LARGE) else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_none")
    monkeypatch.setenv("HF_TOKEN", "hf_none")


@pytest.fixture
def hub() -> Iterator[str]:
    """Serve an empty Hub; yield its address."""
    Hub.commits = 0
    for kept in (Hub.tags, Hub.repositories, Hub.files, Hub.large, Hub.tokens):
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
    record(tmp_path / "run", pixel_spec())
    words = [*SERL, *page_command(tmp_path / "run")]
    environ = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.stdout.endswith(f"uploaded: {hub}/datasets/lab/cubes\n"), done.stderr
    cubes = tmp_path / "cubes"
    written = [path for path in cubes.rglob("*") if path.is_file()]
    assert Hub.files == {str(path.relative_to(cubes)): path.read_bytes() for path in written}
    assert {path.rpartition(".")[2] for path in Hub.files} == {"json", "mp4", "parquet"}
    large = [data for path, data in Hub.files.items() if path.endswith(LARGE)]
    assert Hub.large == {hashlib.sha256(data).hexdigest(): data for data in large}
    (made,) = Hub.repositories
    assert (made["organization"], made["name"], made["type"]) == ("lab", "cubes", "dataset")
    assert made.get("private") is True or made["visibility"] == "private"  # before, since 2.0
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


def test_interrupted_upload_names_kept_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    record(tmp_path / "run", pixel_spec())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", interrupted)
    assert main(page_command(tmp_path / "run")) == 130
    assert capsys.readouterr().err.endswith("interrupted; not uploaded; kept in cubes\n")


def test_failed_upload_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("{}")
    with pytest.raises(SerlError, match=r"^lab/cubes: not uploaded: ") as caught:
        push(tmp_path, "lab/cubes", "v3.0", "http://127.0.0.1:9")
    assert "\n" not in str(caught.value)
