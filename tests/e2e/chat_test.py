#!/usr/bin/python3
"""A small model that is tuned on conversations until it knows them by heart, used by the chat API, by `nsactl chat` and, where there is a Chromium, by the page.

    tests/e2e/chat_test.py BIN_DIR
"""
import functools
import http.server
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testing"))
sys.path.insert(0, str(HERE.parent / "server/web"))
from model_server import ModelServer  # noqa: E402
from processes import children, running, until  # noqa: E402

TALKS = {"Hi": "Hello!", "Bye": "See you."}
JOB = """
name: tuned
model: {dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 64}
data: {source: jsonl, path: chats.jsonl, val_path: val.jsonl, tokenizer: byte, loss_on: assistant}
train: {steps: 400, seq_len: 256, batch_size: 2, lr: 3.0e-3, warmup_steps: 20, save_every: 400}
"""


def messages(*questions):
    """The questions with their answers."""
    return [{"role": role, "content": content} for question in questions for role, content in (("user", question), ("assistant", TALKS[question]))]


def write_job(folder):
    talks = [messages(first, second) for first in TALKS for second in TALKS]
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    (folder / "val.jsonl").write_text(json.dumps({"messages": messages("Hi", "Bye", "Hi")}) + "\n")
    (folder / "job.yaml").write_text(JOB)


def chat(server, *questions, **more):
    status, answer = server.ask({"messages": messages(*questions)[:-1], "temperature": 0, **more}, path="/v1/chat/completions")
    assert status == 200, answer
    return answer


def check_api(server):
    """The answers end at the marker of the format, which is no part of them."""
    for questions in [("Hi",), ("Bye",), ("Hi", "Bye"), ("Bye", "Hi")]:
        choice = chat(server, *questions)["choices"][0]
        assert choice["message"]["content"] == TALKS[questions[-1]] and choice["finish_reason"] == "stop", (questions, choice)
    cut = chat(server, "Hi", max_tokens=3)
    assert cut["choices"][0]["message"]["content"] == "Hel" and cut["choices"][0]["finish_reason"] == "length", cut
    assert chat(server, "Hi", stop=["l"])["choices"][0]["message"]["content"] == "He"
    print("API: answers by heart, to the marker that ends them")


def nsactl_chat(bin_dir, folder, *words, lines):
    return subprocess.run([bin_dir / "nsactl", "chat", *words, "--temperature", "0"], cwd=folder, input=lines, capture_output=True, text=True, timeout=120)


def check_pipe(bin_dir, folder, server):
    """Standard output gets the answers, one a line, by a worker of its own and by a server that runs."""
    for words in [("artifacts/tuned",), ("--url", server.url), ("--url", server.url + "/v1/")]:
        said = nsactl_chat(bin_dir, folder, *words, lines="Hi\n\nBye\n/reset\n/system\nHi\n/exit\nBye\n")
        assert (said.returncode, said.stdout, said.stderr) == (0, "Hello!\nSee you.\nHello!\n", ""), said
    unknown = nsactl_chat(bin_dir, folder, "--url", server.url, lines="/reste\nHi\n")
    assert unknown.returncode == 2 and "/reste: unknown (/reset," in unknown.stderr and unknown.stdout == "", unknown
    long = nsactl_chat(bin_dir, folder, "--url", server.url, lines="x" * 300 + "\n")
    assert long.returncode == 6 and "messages: 351 tokens, and one to answer with" in long.stderr, long
    absent = nsactl_chat(bin_dir, folder, "--url", "http://127.0.0.1:1", lines="Hi\n")
    assert absent.returncode == 4 and "does `nsactl serve` run there?" in absent.stderr, absent
    print("nsactl chat: answers through a pipe")


def check_worker_ends(bin_dir, folder):
    """However nsactl ends, its worker does too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([bin_dir / "nsactl", "chat", "artifacts/tuned"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.stdin.write("Hi\n")
        process.stdin.flush()
        assert process.stdout.readline(), "no answer"
        worker, = children(process.pid)
        process.send_signal(number)
        process.wait(30)
        until(lambda: not running(worker), f"the worker has ended after {number}", 30)
    print("nsactl chat: its worker ends with it")


class Endless(http.server.BaseHTTPRequestHandler):
    """A server whose answer has no end."""
    left = threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = b'{"data": [{"id": "endless"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b'data: {"choices": [{"index": 0, "delta": {"content": "la \\u001b[2J"}, "finish_reason": null}]}\n\n')
                time.sleep(0.02)
        except OSError:
            self.left.set()


def check_terminal(bin_dir):
    """Ctrl-C stops an answer and not the program; Ctrl-D ends it. What steers a terminal is shown, not obeyed."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    process, terminal = pty.fork()
    if process == 0:
        os.execv(bin_dir / "nsactl", ["nsactl", "chat", "--url", f"http://127.0.0.1:{server.server_port}"])
    said = b""

    def says(text, after=0):
        nonlocal said
        while text not in said[after:]:
            said += os.read(terminal, 4096)
        return len(said)

    says(b"Talking to endless.")
    at = says(b"> ")
    os.write(terminal, b"Sing\n")
    says(b"la \\x1b[2Jla", at)
    assert b"\x1b[2J" not in said, said
    os.write(terminal, b"\x03")
    at = says(b"> ", len(said))
    assert Endless.left.wait(30), "the request has not ended"
    os.write(terminal, b"/help\n")
    says(b"begins a new conversation", at)
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    server.shutdown()
    print("nsactl chat: Ctrl-C stops an answer, Ctrl-D ends")


def check_page(server):
    try:
        from browser import Browser
    except ImportError:
        print("page: not checked, no python3-selenium")
        return
    if not pathlib.Path("/usr/bin/chromium").exists() or not pathlib.Path("/usr/bin/chromedriver").exists():
        print("page: not checked, no Chromium")
        return
    with Browser(server.url, 390, 800) as page:
        page.resize(390, 800)
        page.driver.get(server.url + "/")
        page.until(lambda: page.text("#model") == "tuned", "the model's name")
        said = functools.partial(page.run, "return [...document.querySelectorAll('article')].map((one) => one.textContent)")
        page.click("summary", "Settings")
        page.type("#temperature", "0")
        page.type("#text", "Hi")
        page.keys("\r")
        page.until(lambda: said() == ["YouHi", "ModelHello!"], "an answer")
        page.until(lambda: not page.run("return document.getElementById('send').hidden"), "the end of the answer")
        page.type("#text", "Bye")
        page.click("#send")
        page.until(lambda: said()[2:] == ["YouBye", "ModelSee you."], "a second answer")
        assert page.run("return document.documentElement.scrollWidth") <= 390, "it is wider than the window"
        page.type("#most", "2")
        page.click("#reset")
        page.until(lambda: said() == [], "a new conversation")
        page.type("#text", "x" * 300)
        page.keys("\r")
        page.until(lambda: "messages: 351 tokens" in page.text("#status"), "the server's refusal")
        assert len(page.run("return document.getElementById('text').value")) == 300, "what was refused can be changed"
        assert not page.barriers(), page.barriers()
        # The refusal itself is in the log of the browser, and nothing else: no policy was violated.
        assert all("400" in line for line in page.log()), page.log()
    print("page: a conversation in Chromium, 390 pixels wide")


def main(bin_dir):
    bin_dir = pathlib.Path(bin_dir).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_job(folder)
        subprocess.run([bin_dir / "nsa-worker", "--job", "job.yaml"], cwd=folder, check=True, capture_output=True)
        server = ModelServer(bin_dir, folder, "artifacts/tuned")
        try:
            check_api(server)
            check_pipe(bin_dir, folder, server)
            check_page(server)
        finally:
            server.process.terminate()
            server.process.wait(30)
        check_worker_ends(bin_dir, folder)
        check_terminal(bin_dir)


main(*sys.argv[1:])
