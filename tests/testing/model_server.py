"""A trained model that nsactl serves, and requests to it."""
import json
import pathlib
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request


class ModelServer:
    """nsactl serve on a free port."""

    def __init__(self, bin_dir, folder, model):
        self.log = open(folder / "serve.log", "w+b")
        self.process = subprocess.Popen([bin_dir / "nsactl", "serve", model, "--listen", "127.0.0.1:0"], cwd=folder, stdout=self.log, stderr=self.log)
        self.url = self.await_line(r"at (http://127\.0\.0\.1:\d+)/v1 ")
        self.port = int(self.url.rsplit(":", 1)[1])

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def await_line(self, pattern):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(pattern, self.said())
            if found:
                return found[1]
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"{pattern}: not within 60 s\n{self.said()}")

    def ask(self, body, headers=None, path="/v1/completions"):
        """The status and the JSON of an answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def raw(self, data, seconds=30):
        """What the server answers to these bytes until it closes; nothing when it resets the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            try:
                connection.sendall(data)
                answer = b""
                while part := connection.recv(65536):
                    answer += part
                return answer
            except (ConnectionResetError, BrokenPipeError):
                return b""
