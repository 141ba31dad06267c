"""A server on this machine that speaks the part of the Hugging Face Hub's HTTP API that this project uses.

It stores what is uploaded by Git LFS's protocol (`HF_HUB_DISABLE_XET`; Xet's own needs a server of its own), tells
repositories that others own from those that are missing as the Hub does, and can break an upload off.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKENS = {"hf_me": "me", "hf_other": "other"}


def git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    owner: str
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)  # which of them
    commits: int = 0


@dataclass
class Hub:
    """What the server has and was asked."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # of LFS, by SHA-256
    sent: list[str] = field(default_factory=list)  # SHA-256 of each blob that was received
    break_after: int | None = None  # blobs, after which every upload is refused
    checked: list[str] = field(default_factory=list)  # cards that were validated
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)


@contextlib.contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        self.data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        path, self.query = unquote(parts.path), parse_qs(parts.query)
        for pattern, method in _ROUTES:
            found = re.fullmatch(pattern, path)
            if found:
                getattr(self, method)(*found.groups())
                return
        self._answer(404, {"error": f"no route {self.command} {path}"})

    def _answer(self, code: int, value: Any = None, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        body = data if value is None else json.dumps(value).encode()
        self.send_response(code)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        if code >= 400 and isinstance(value, dict) and "error" in value:
            self.send_header("X-Error-Message", value["error"])
        if value is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _user(self) -> str | None:
        return TOKENS.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def _repository(self, name: str) -> Repository | None:
        """The repository, if this token sees it; otherwise the answer is given."""
        found = self.state.repositories.get(name)
        if found is None or (found.private and found.owner != self._user()):
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return found

    def _commit(self, found: Repository) -> str:
        return f"{found.commits:040x}"

    def whoami(self) -> None:
        user = self._user()
        if user is None:
            self._answer(401, {"error": "Invalid user token."})
        else:
            self._answer(200, {"type": "user", "name": user, "orgs": [], "auth": {"type": "access_token"}})

    def validate(self) -> None:
        self.state.checked.append(json.loads(self.data)["content"])
        self._answer(200, {"errors": [], "warnings": []})

    def create(self) -> None:
        asked = json.loads(self.data)
        owner, user = asked.get("organization") or self._user(), self._user()
        name = f"{owner}/{asked['name']}"
        if user is None:
            self._answer(401, {"error": "Invalid user token."})
        elif owner != user:
            self._answer(403, {"error": f"You don't have the rights to create a dataset under {owner}"})
        elif name in self.state.repositories:
            self._answer(409, {"error": "You already created this dataset repo"})
        else:
            self.state.repositories[name] = Repository(
                user, asked.get("private") is True or asked.get("visibility") == "private"
            )
            self._answer(200, {"url": f"{self.state.url}/datasets/{name}", "name": name, "id": name})

    def tree(self, name: str, inside: str | None) -> None:
        found = self._repository(name)
        if found:
            prefix = f"{inside}/" if inside else ""
            paths = [path for path in sorted(found.files) if path.startswith(prefix)]
            files = [self._entry(found, path) for path in paths]
            folders = {path[: match.start()] for path in paths for match in re.finditer("/", path)}
            depth = prefix.count("/")
            if self.query.get("recursive", ["False"])[0] not in ("True", "true", "1"):
                folders = {one for one in folders if one.count("/") == depth and one.startswith(prefix)}
                files = [one for one in files if one["path"].count("/") == depth]
            listed = [{"type": "directory", "path": one, "oid": "0" * 40, "size": 0} for one in sorted(folders)]
            self._answer(200, [*listed, *files])

    def paths_info(self, name: str) -> None:
        found = self._repository(name)
        if found:
            paths = parse_qs(self.data.decode()).get("paths") or json.loads(self.data)["paths"]
            answer: list[Any] = [self._entry(found, path) for path in paths if path in found.files]
            for path in paths:
                if path not in found.files and any(one.startswith(f"{path}/") for one in found.files):
                    answer.append({"type": "directory", "path": path, "oid": "0" * 40, "size": 0})
            self._answer(200, answer)

    def _entry(self, found: Repository, path: str) -> dict[str, Any]:
        data = found.files[path]
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_digest(data)}
        if path in found.lfs:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def info(self, name: str) -> None:
        found = self._repository(name)
        if found:
            files = [{"rfilename": path, "size": len(data)} for path, data in found.files.items()]
            about = {"id": name, "sha": self._commit(found), "private": found.private, "siblings": files}
            self._answer(200, about | {"tags": [], "downloads": 0, "likes": 0})

    def preupload(self, name: str) -> None:
        found = self._repository(name)
        if found:
            answer = []
            for file in json.loads(self.data)["files"]:
                path = file["path"]
                mode = "lfs" if path.endswith(".parquet") else "regular"
                there = found.files.get(path)
                oid = None
                if there is not None:
                    oid = hashlib.sha256(there).hexdigest() if path in found.lfs else git_digest(there)
                answer.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self._answer(200, {"files": answer})

    def batch(self, name: str) -> None:
        if self._repository(name):
            objects = []
            for one in json.loads(self.data)["objects"]:
                upload = {"href": f"{self.state.url}/lfs/{one['oid']}", "header": {}}
                actions = {} if one["oid"] in self.state.blobs else {"actions": {"upload": upload}}
                objects.append({"oid": one["oid"], "size": one["size"], **actions})
            self._answer(200, {"transfer": "basic", "objects": objects})

    def blob(self, oid: str) -> None:
        assert hashlib.sha256(self.data).hexdigest() == oid
        limit = self.state.break_after
        with self.state.lock:
            refused = limit is not None and len(self.state.sent) >= limit
            if not refused:
                self.state.sent.append(oid)
        if refused:
            self._answer(400, {"error": "the upload broke off"})
            return
        self.state.blobs[oid] = self.data
        self._answer(200, {})

    def commit(self, name: str) -> None:
        found = self._repository(name)
        if found is None:
            return
        if found.owner != self._user():
            self._answer(403, {"error": "You have no right to write"})
            return
        for line in self.data.splitlines():
            one = json.loads(line)
            value = one["value"]
            if one["key"] == "file":
                found.files[value["path"]] = base64.b64decode(value["content"])
            elif one["key"] == "lfsFile":
                found.files[value["path"]] = self.state.blobs[value["oid"]]
                found.lfs.add(value["path"])
            elif one["key"] == "deletedFile":
                del found.files[value["path"]]
        found.commits += 1
        oid = self._commit(found)
        self._answer(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.state.url}/datasets/{name}/commit/{oid}"}
        )

    def resolve(self, name: str, path: str) -> None:
        found = self._repository(name)
        if found is None:
            return
        if path not in found.files:
            self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        data = found.files[path]
        headers = {"ETag": f'"{git_digest(data)}"', "X-Repo-Commit": self._commit(found), "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            low, high = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {low}-{high}/{len(data)}"
            self._answer(206, headers=headers, data=data[low : high + 1])
        else:
            self._answer(200, headers=headers, data=data)


_NAME = r"([^/]+/[^/]+)"
_ROUTES = (
    (r"/api/whoami-v2", "whoami"),
    (r"/api/validate-yaml", "validate"),
    (r"/api/repos/create", "create"),
    (rf"/api/datasets/{_NAME}/tree/[^/]+(?:/(.*))?", "tree"),
    (rf"/api/datasets/{_NAME}/paths-info/[^/]+", "paths_info"),
    (rf"/api/datasets/{_NAME}/preupload/[^/]+", "preupload"),
    (rf"/api/datasets/{_NAME}/commit/[^/]+", "commit"),
    (rf"/api/datasets/{_NAME}(?:/revision/[^/]+)?", "info"),
    (rf"/datasets/{_NAME}\.git/info/lfs/objects/batch", "batch"),
    (r"/lfs/([0-9a-f]{64})", "blob"),
    (rf"/datasets/{_NAME}/resolve/[^/]+/(.+)", "resolve"),
    (rf"/{_NAME}/resolve/[^/]+/(.+)", "resolve"),
)
