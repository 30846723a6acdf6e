"""Serves a folder on loopback with ranges and ETags, as a web server and as the Hugging Face Hub, and fails some requests on purpose.

    FOLDER/web/x            http://127.0.0.1:PORT/x
    FOLDER/hub/o/n/x        hf://datasets/o/n/x, with HF_ENDPOINT=http://127.0.0.1:PORT; needs the token, and redirects to /blob/o/n/x, which must not get it
"""
import hashlib
import http.server
import json
import pathlib
import threading
import time
import urllib.parse

COMMIT = "c0ffee" + "0" * 34  # of every branch
FAILURES = ("503", "429", "close", "truncate", "500")


class DataServer:
    def __init__(self, folder, fail_every=0, token="", rate=0):
        """Every `fail_every`th request fails, in turn by each of FAILURES. `rate`: bytes a second of all answers together; 0: no limit."""
        self.rate, self.free_at = rate, 0.0
        self.etags = {}  # by file, size and time
        self.folder, self.fail_every, self.token = pathlib.Path(folder), fail_every, token
        self.lock = threading.Lock()
        self.requests = self.failed = self.sent = 0
        self.leaks = []  # requests that had the token and should not have
        handler = type("Handler", (Handler,), {"data": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(10)

    def etag(self, path):
        state = path.stat()
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self.etags:
            self.etags[key] = '"' + hashlib.sha256(path.read_bytes()).hexdigest() + '"'
        return self.etags[key]

    def send(self, stream, body):
        """Writes pieces, each in the time that it takes at `rate`, one after another over all connections."""
        for begin in range(0, len(body), 1 << 18):
            piece = body[begin:begin + (1 << 18)]
            if self.rate:
                with self.lock:
                    self.free_at = max(self.free_at, time.monotonic()) + len(piece) / self.rate
                    wait = self.free_at - time.monotonic()
                time.sleep(max(wait, 0))
            stream.write(piece)

    def next_failure(self):
        with self.lock:
            self.requests += 1
            if not self.fail_every or self.requests % self.fail_every:
                return None
            self.failed += 1
            return FAILURES[self.failed % len(FAILURES)]


class Handler(http.server.BaseHTTPRequestHandler):
    data = None
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except ConnectionError:  # a client that has ended
            pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        failure = self.data.next_failure()
        if failure == "close":
            self.close_connection = True
            return
        if failure in ("429", "503", "500"):
            return self.answer(int(failure), **({"Retry_After": "0"} if failure == "429" else {}))
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        authorized = self.headers.get("Authorization") == f"Bearer {self.data.token}"
        hub = path.startswith(("/datasets/", "/api/"))
        if hub and self.data.token and not authorized:
            return self.answer(401)
        if not hub and self.data.token and "Authorization" in self.headers:
            self.data.leaks.append(self.path)
        if path.startswith("/api/datasets/"):
            owner, name, what, _, *folder = path.split("/")[3:]
            if what == "revision":
                return self.answer(200, json.dumps({"sha": COMMIT}).encode())
            return self.list(pathlib.Path(owner, name), "/".join(folder))
        if path.startswith("/datasets/"):
            owner, name, _, _, rest = path.split("/", 6)[2:]
            other = f"http://localhost:{self.server.server_port}"  # another origin
            return self.answer(302, Location=f"{other}/blob/{owner}/{name}/{urllib.parse.quote(rest)}?sig=signature")
        inside = self.data.folder / "hub" / path[6:] if path.startswith("/blob/") else self.data.folder / "web" / path[1:]
        return self.file(inside, truncate=failure == "truncate")

    def list(self, repository, folder):
        here = self.data.folder / "hub" / repository / folder
        entries = [{"type": "file", "path": f"{folder}/{one.name}".lstrip("/"), "size": one.stat().st_size} for one in sorted(here.iterdir())]
        self.answer(200, json.dumps(entries).encode())

    def file(self, path, truncate):
        if not path.is_file():
            return self.answer(404)
        etag = self.data.etag(path)
        size = path.stat().st_size
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            return self.answer(200, path.read_bytes(), ETag=etag)
        begin, end = (int(word) for word in wanted[6:].split("-"))
        if begin >= size:
            return self.answer(416, Content_Range=f"bytes */{size}")
        with path.open("rb") as content:
            content.seek(begin)
            body = content.read(end + 1 - begin)
        self.send_response(206)
        for name, value in (("ETag", etag), ("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{size}"), ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.data.send(self.wfile, body[: len(body) // 2] if truncate else body)
        self.close_connection = self.close_connection or truncate
        with self.data.lock:
            self.data.sent += len(body)
