"""A hub of models that can be told to misbehave: what `baltoro pull` asks of Hugging Face and of ModelScope, and what
huggingface_hub asks beside it."""
import hashlib
import http.server
import json
import re
import socket
import struct
import threading
import time
import urllib.parse

COMMIT = "c0ffee" + "0" * 34


def git_sum(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Hub:
    """`files`: path -> bytes; those in `lfs` are known by their sha256. What goes wrong is in the attributes."""

    def __init__(self, files=None, lfs=(), repo="org/name"):
        self.files, self.lfs, self.repo = dict(files or {}), set(lfs), repo
        self.token = None          # who lacks it is answered 401
        self.denial = "Access to model is restricted"
        self.cdn = None            # another Hub, to which LFS files are redirected
        self.refusals = []         # (status, headers) for the next requests of files
        self.drop_after = 0        # bytes of an answer, then the connection is cut
        self.drops = 0             # of so many answers
        self.ignore_range = False
        self.chunk_pause = 0       # seconds between pieces of 64 KiB
        self.gate = None           # an Event that each answer of a file waits for after its first piece
        self.stall = False         # nothing comes after the first piece
        self.length_lie = 0        # added to Content-Length of LFS files
        self.etags = {}            # path -> what is said instead of the sum
        self.listing = None        # bytes instead of the true one
        self.requests = []         # (method, path, headers)
        self.bytes_sent = self.connections = 0
        self.at_once = self.at_once_max = 0
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                with hub.lock:
                    hub.connections += 1

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # clients hang up

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def file_requests(self, method="GET"):
        return [one for one in self.requests if one[0] == method and "/resolve/" in one[1]]

    def sum_of(self, path):
        return sha256(self.files[path]) if path in self.lfs else git_sum(self.files[path])

    def answer(self, request):
        path = urllib.parse.unquote(request.path)
        if path.startswith("http://"):  # as a proxy is asked
            path = "/" + path.split("/", 3)[3]
        with self.lock:
            self.requests.append((request.command, path, dict(request.headers)))
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            self.route(request, path)
        finally:
            with self.lock:
                self.at_once -= 1

    def route(self, request, path):
        if self.token and request.headers.get("Authorization") != "Bearer " + self.token:
            return self.send(request, 401, json.dumps({"error": self.denial}).encode(),
                             {"X-Error-Code": "GatedRepo"})
        if path.startswith(f"/api/models/{self.repo}"):
            rest = path[len(f"/api/models/{self.repo}"):]
            if "/tree/" in rest:
                return self.send(request, 200, json.dumps(self.tree()).encode())
            if rest.startswith("/revision/") and rest[10:].split("?")[0] not in ("main", "v1", COMMIT):
                return self.send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            return self.send(request, 200, self.listing or json.dumps(self.siblings()).encode())
        if path.startswith(f"/api/v1/models/{self.repo}/repo/files"):
            files = [{"Type": "blob", "Path": name, "Name": name.split("/")[-1], "Size": len(data), "Sha256": sha256(data)}
                     for name, data in self.files.items()]
            return self.send(request, 200, json.dumps({"Code": 200, "Success": True, "Data": {"Files": files}}).encode())
        found = re.fullmatch(r"(?:/models)?/" + re.escape(self.repo) + r"/resolve/[^/]+/(.+)", path)
        if found is None or found.group(1) not in self.files:
            return self.send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        self.send_file(request, found.group(1))

    def siblings(self):
        def entry(name, data):
            out = {"rfilename": name, "size": len(data), "blobId": git_sum(data)}
            return out | ({"lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 130}} if name in self.lfs else {})
        return {"id": self.repo, "sha": COMMIT, "siblings": [entry(*item) for item in self.files.items()]}

    def tree(self):
        def entry(name, data):
            out = {"type": "file", "path": name, "size": len(data), "oid": git_sum(data)}
            return out | ({"lfs": {"oid": sha256(data), "size": len(data), "pointerSize": 130}} if name in self.lfs else {})
        return [entry(*item) for item in self.files.items()]

    def send(self, request, status, body, headers=None):
        request.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            request.send_header(key, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def send_file(self, request, name):
        data = self.files[name]
        with self.lock:
            refusal = self.refusals.pop(0) if self.refusals and request.command == "GET" else None
        if refusal:
            return self.send(request, refusal[0], b"", refusal[1])
        headers = {"ETag": f'"{self.etags.get(name, self.sum_of(name))}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if self.cdn is not None and name in self.lfs:
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(data)), "Location": self.cdn.url + request.path}
            return self.send(request, 302, b"", headers)
        begin, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if asked and not self.ignore_range:
            begin, end = int(asked.group(1)), min(int(asked.group(2) or len(data) - 1) + 1, len(data))
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        request.send_response(status)
        length = end - begin + (self.length_lie if name in self.lfs else 0)
        for key, value in ({"Content-Length": str(length)} | headers).items():
            request.send_header(key, value)
        request.end_headers()
        if request.command == "HEAD":
            return
        with self.lock:
            drop = self.drops > 0
            self.drops -= drop
        for at in range(begin, end, 65536):
            piece = data[at:min(end, at + 65536)]
            if drop and at + len(piece) - begin > self.drop_after:
                piece = piece[:max(0, self.drop_after - (at - begin))]
            request.wfile.write(piece)
            with self.lock:
                self.bytes_sent += len(piece)
            if self.gate is not None:
                self.gate.wait(30)
            if self.stall:
                time.sleep(30)
            if drop and at + len(piece) - begin >= self.drop_after:
                request.connection.shutdown(socket.SHUT_RDWR)
                return
            time.sleep(self.chunk_pause)
        request.close_connection = self.length_lie != 0


def file_per_layer(model):
    """The files of a checkpoint folder, its weights cut anew: a file a layer, others for what is of none."""
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    index = json.loads(files.pop("model.safetensors.index.json"))
    parts = {}
    for shard in set(index["weight_map"].values()):
        data = files.pop(shard)
        length, = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8:8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                layer = re.search(r"layers\.(\d+)\.", name)
                sees = name.startswith(("vision_tower.", "mm_projector."))
                part = "vision" if sees else layer.group(1) if layer else "embed" if "embed_tokens" in name else "head"
                part = f"model-{part}.safetensors"
                parts.setdefault(part, []).append((name, entry, data[8 + length + begin:8 + length + end]))
    for part, tensors in parts.items():
        header, at = {}, 0
        for name, entry, data in tensors:
            header[name] = entry | {"data_offsets": [at, at + len(data)]}
            at += len(data)
        text = json.dumps(header).encode()
        files[part] = struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors)
    index["weight_map"] = {name: part for part, tensors in parts.items() for name, _, _ in tensors}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}, set(parts)
