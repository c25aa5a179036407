"""Push and pull, against a small server of our own that speaks as much of the hub's language as is needed."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from worlds import random_dataset, same

disable_progress_bars = pytest.importorskip("huggingface_hub.utils").disable_progress_bars
SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Repositories in memory: name: {path: content}; and what was asked for."""

    repos: ClassVar[dict] = {}
    tags: ClassVar[list] = []
    asked: ClassVar[list] = []

    def log_message(self, *args):
        pass

    def answer(self, content, status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self):
        self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    def address(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        path = urlsplit(self.path).path
        self.asked.append((self.command, path))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "datasets"]:
            files = self.repos.get("/".join(parts[2:4]))
            if files is None:
                return self.missing()
            if "tree" in parts:
                rows = [
                    {"type": "file", "path": name, "size": len(text), "oid": hashlib.sha1(text).hexdigest()}
                    for name, text in files.items()
                ]
                return self.answer(rows)
            siblings = [{"rfilename": name} for name in files]
            return self.answer({"id": "/".join(parts[2:4]), "sha": SHA, "siblings": siblings, "tags": []})
        if parts[0] == "datasets" and parts[3] == "resolve":
            text = self.repos["/".join(parts[1:3])]["/".join(parts[5:])]
            tag = hashlib.sha1(text).hexdigest()
            return self.answer(text, ETag=f'"{tag}"', X_Repo_Commit=SHA, Content_Type="application/octet-stream")
        return self.answer({"error": path}, 404)

    do_HEAD = do_GET

    def do_POST(self):
        path = urlsplit(self.path).path
        self.asked.append((self.command, path))
        parts = path.strip("/").split("/")
        text = self.body()
        if path == "/api/repos/create":
            given = json.loads(text)
            name = "/".join(part for part in (given.get("organization"), given["name"]) if part)
            self.repos.setdefault(name, {})
            return self.answer({"url": f"{self.address()}/datasets/{name}", "name": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        name = "/".join(parts[2:4])
        if parts[4] == "preupload":
            files = [
                {**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(text)["files"]
            ]
            return self.answer({"files": files})
        if parts[4] == "commit":
            for line in map(json.loads, text.splitlines()):
                if line["key"] == "file":
                    self.repos[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self.answer({"commitUrl": f"{self.address()}/datasets/{name}/commit/{SHA}", "commitOid": SHA})
        if parts[4] == "tag":
            self.tags.append((name, json.loads(text)["tag"]))
            return self.answer({})
        return self.answer({"error": path}, 404)


@pytest.fixture
def server(monkeypatch, tmp_path_factory):
    Hub.repos, Hub.tags, Hub.asked = {}, [], []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{running.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    disable_progress_bars()
    yield Hub
    running.shutdown()
    running.server_close()
    thread.join()


def test_a_file_goes_and_comes_back(server, tmp_path, capsys):
    data = random_dataset(0, (5, 9, 3))
    save(data, tmp_path / "x.npz")
    assert main(["push", str(tmp_path / "x.npz"), "hf:me/better", "--license", "mit"]) == 0
    assert set(server.repos["me/better"]) == {"x.npz", "README.md"}
    card = server.repos["me/better"]["README.md"].decode()
    assert "license: mit" in card
    assert f"| fingerprint | `{data.fingerprint}` |" in card
    assert "| episodes | 3 " in card
    assert 'ts.load("hf:me/better")' in card
    assert same(load("hf:me/better"), data)
    assert main(["inspect", "hf:me/better", "--quiet"]) == 0
    assert main(["push", str(tmp_path / "x.npz"), "hf:me/better"]) == 2
    assert "hf:me/better exists already" in capsys.readouterr().err
    assert main(["push", str(tmp_path / "x.npz"), "hf:me/better", "--overwrite", "--quiet"]) == 0


def test_a_lerobot_folder_keeps_its_layout(server, tmp_path):
    data = random_dataset(0, (5, 9))
    save(data, f"lerobot:{tmp_path / 'robot'}")
    video = tmp_path / "robot/videos/top/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    video.write_bytes(b"video")
    assert main(["push", f"lerobot:{tmp_path / 'robot'}", "hf:me/robot", "--quiet"]) == 0
    files = server.repos["me/robot"]
    assert {"meta/info.json", "data/chunk-000/file-000.parquet", "videos/top/chunk-000/file-000.mp4"} <= set(files)
    assert server.tags == [("me/robot", "v3.0")]  # which LeRobot looks for
    assert "- LeRobot" in files["README.md"].decode()
    assert not (tmp_path / "robot/README.md").exists()
    back = load("hf:me/robot")
    assert same(back, data)
    assert not [path for _, path in server.asked if "resolve" in path and path.endswith(".mp4")]


def test_folders_of_ours_and_data_without_a_file(server, tmp_path):
    data = random_dataset(0, (4,))
    save(data, tmp_path / "x.traj")
    assert main(["push", str(tmp_path / "x.traj"), "hf:me/folder", "--quiet"]) == 0
    assert same(load("hf:me/folder"), data)
    assert main(["push", "demo", "hf:me/demo", "--quiet", "--private"]) == 0
    assert load("hf:me/demo").fingerprint == load("demo").fingerprint


def test_what_is_refused(server, tmp_path, capsys, monkeypatch):
    with pytest.raises(InputError, match="hf:me/none: there is no such data set on the hub"):
        load("hf:me/none")
    server.repos["me/two"] = {"a.npz": b"1", "b.hdf5": b"2"}
    with pytest.raises(InputError, match=r"one data set \(.hdf5.*but there are: a.npz, b.hdf5"):
        load("hf:me/two")
    server.repos["me/text"] = {"notes.txt": b"1"}
    with pytest.raises(InputError, match="but there are: none"):
        load("hf:me/text")
    with pytest.raises(InputError, match="trajstitch push it"):
        save(random_dataset(0, (3,)), "hf:me/x")
    for name in ("me/x", "hf:x", "hf:me/x/y", "hf:"):
        assert main(["push", "demo", name]) == 2
        assert "write hf:USER/NAME" in capsys.readouterr().err
    assert main(["push", str(Path(tmp_path) / "none.npz"), "hf:me/x"]) == 2
    assert "me/x" not in server.repos
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert main(["push", "demo", "hf:me/x"]) == 2
    assert "cannot be reached" in capsys.readouterr().err
