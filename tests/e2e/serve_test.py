#!/usr/bin/env python3
"""A model that `nsactl serve` serves, used by npm's openai, by requests as lm-eval sends them, and by clients that mean harm.

    tests/e2e/serve_test.py BIN_DIR

Needs Node and the package of tests/e2e/serve/package.json (deploy/packages.sh test); skipped (77) without them.
"""
import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testing"))
from model_server import ModelServer  # noqa: E402
from processes import children, processor_seconds  # noqa: E402

TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer é 日 😀\n" * 20
JOB = """
name: tiny
model: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}
nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}
data: {source: text, path: text.txt, val_path: val.txt, tokenizer: byte}
train: {steps: 100, seq_len: 128, batch_size: 4, lr: 3.0e-3, save_every: 100}
"""
# Sums in another order.
ROUNDING = 2e-4


def find_package():
    found = subprocess.run([HERE.parents[1] / "deploy/node_packages.sh", "--where", HERE / "serve"], capture_output=True, text=True, check=True).stdout
    package = pathlib.Path(found.strip()) / "node_modules/openai"
    if not shutil.which("node") or not package.is_dir():
        print("skipped: no node, or no openai; deploy/packages.sh test installs both")
        sys.exit(77)
    return str(package)


def check_openai_client(server, package):
    said = subprocess.run(["node", HERE / "serve/client.mjs", server.url + "/v1", "tiny"], env={**os.environ, "OPENAI_PACKAGE": package, "no_proxy": "*"},
                          capture_output=True, text=True, timeout=200)
    assert said.returncode == 0, said.stderr
    got = json.loads(said.stdout)
    assert got["models"] == ["tiny"] and got["model"] == "tiny", got
    whole = got["whole"]["choices"][0]
    assert whole["finish_reason"] == "length" and got["whole"]["usage"] == {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}, got
    assert got["stream"]["text"] == whole["text"] and got["stream"]["reason"] == "length" and got["stream"]["parts"] > 5, got["stream"]
    assert got["stream"]["usage"] == got["whole"]["usage"], got["stream"]
    assert got["stopped"]["reason"] == "stop" and not set(got["stopped"]["text"]) & set("oe "), got["stopped"]
    assert (got["wrong"]["name"], got["wrong"]["status"], got["wrong"]["param"]) == ("BadRequestError", 400, "n"), got["wrong"]
    assert (got["other"]["name"], got["other"]["code"]) == ("NotFoundError", "model_not_found"), got["other"]
    assert got["long"]["code"] == "context_length_exceeded" and "128" in got["long"]["message"], got["long"]
    chat = got["chat"]["choices"][0]
    assert chat["message"]["role"] == "assistant" and chat["finish_reason"] == "length", chat
    assert [len(token["top_logprobs"]) for token in chat["logprobs"]["content"]] == [2] * 20, chat
    assert got["chatStream"] == {"text": chat["message"]["content"], "roles": ["assistant"], "reason": "length", "usage": got["chat"]["usage"]}, got
    assert got["left"] is True
    version = json.loads((pathlib.Path(package) / "package.json").read_text())["version"]
    print(f"openai {version}: answers, streams in {got['stream']['parts']} parts, errors")


def lm_eval_results(answer, lengths):
    """What lm-eval's local-completions makes of an answer: the sum of the continuation's logprobs, and whether it is what greedy decoding gives."""
    results = []
    for choice, length in zip(sorted(answer["choices"], key=lambda choice: choice["index"]), lengths, strict=True):
        logprobs = choice["logprobs"]["token_logprobs"][length:-1]
        tops = choice["logprobs"]["top_logprobs"][length:-1]
        results.append((sum(logprobs), all(logprob == max(top.values()) for logprob, top in zip(logprobs, tops, strict=True))))
    return results


def scores_of(bin_dir, folder, text):
    """The logprobs of the bytes by nsa-worker score."""
    (folder / "scored.txt").write_bytes(text)
    subprocess.run([bin_dir / "nsa-worker", "score", "artifacts/tiny", "scored.txt", "-o", "scores.jsonl"], cwd=folder, check=True, capture_output=True)
    return [json.loads(line)["logprob"] for line in (folder / "scores.jsonl").read_text().splitlines()]


def check_lm_eval_scores(server, bin_dir, folder):
    likely = server.ask({"prompt": "To be, or not", "max_tokens": 5, "temperature": 0})[1]["choices"][0]["text"]
    pairs = [("To be, or not", likely), ("To be, or not to be, that", " is the question"), ("whether 'tis", " xyz é 日"), ("a", "b")]
    lengths = [len(context.encode()) for context, _ in pairs]
    request = {"model": "tiny", "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    texts = [context + continuation for context, continuation in pairs]
    answers = []
    for prompts in [texts, [list(text.encode()) for text in texts]]:
        status, answer = server.ask({**request, "prompt": prompts})
        assert status == 200, answer
        answers.append(lm_eval_results(answer, lengths))
        sizes = sum(len(text.encode()) for text in texts)
        assert answer["usage"] == {"prompt_tokens": sizes, "completion_tokens": 4, "total_tokens": sizes + 4}, answer["usage"]
    assert answers[0] == answers[1], "strings and tokens give the same"
    assert answers[0][0][1] and not answers[0][2][1], answers[0]
    for text, length, (total, _) in zip(texts, lengths, answers[0], strict=True):
        wanted = sum(scores_of(bin_dir, folder, text.encode())[length:])
        assert abs(total - wanted) < ROUNDING * len(text), (text, total, wanted)
    # A rolling log-likelihood begins with the separator, whose next token is scored too.
    status, answer = server.ask({**request, "prompt": [[0, *texts[0].encode()]]})
    rolling = answer["choices"][0]["logprobs"]["token_logprobs"]
    wanted = scores_of(bin_dir, folder, texts[0].encode())
    assert rolling[0] is None and all(abs(a - b) < ROUNDING for a, b in zip(rolling[1:-1], wanted, strict=True))
    print(f"lm-eval: {answers[0]} as nsa-worker score")


def check_lm_eval_generates(server, bin_dir, folder):
    status, answer = server.ask({"prompt": ["To be"], "model": "tiny", "max_tokens": 200, "temperature": 0, "stop": ["\n\n", "Question:", "</s>", "\nclass", "\nprint"],
                                 "seed": 1234})
    assert status == 200, answer
    generated = subprocess.run([bin_dir / "nsactl", "generate", "artifacts/tiny", "--prompt", "To be", "--max-tokens", "200", "--temperature", "0"],
                               cwd=folder, check=True, capture_output=True, text=True).stdout
    assert "To be" + answer["choices"][0]["text"] + "\n" == generated, (answer, generated)
    print("lm-eval: generates as nsactl generate")


def check_together(server):
    """Requests at the same time have the texts that each has alone."""
    requests = [{"prompt": "To be, or not"[:i] * (1 + i % 3), "max_tokens": 40 + 40 * i, "seed": i, "n": 1 + i % 2, "temperature": 0.8, "logprobs": 2} for i in range(13)]
    alone = [server.ask(request) for request in requests]
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as clients:
        together = list(clients.map(server.ask, requests))
    for request, (status, one), (_, same) in zip(requests, alone, together, strict=True):
        assert status == 200 and one["choices"] == same["choices"] and one["usage"] == same["usage"], (request, one, same)
    # A request that takes minutes keeps nobody waiting.
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 262143, "stream": True}), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200, "it is being written"
    assert server.ask(requests[0])[1]["choices"] == alone[0][1]["choices"]
    connection.close()
    print(f"together: {len(requests)} requests in {time.monotonic() - begun:.2f} s, texts as alone")


def check_hostile_requests(server):
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n".encode()
    assert server.ask(b"[" * 2_000_000)[0] == 400
    assert server.ask(b'{"prompt": ' + b"[" * 3_000 + b"]" * 3_000 + b"}")[0] == 400
    assert server.ask({"prompt": "a"}, {"Host": "evil.example"})[0] == 421
    assert server.ask({"prompt": "a"}, {"Origin": "https://evil.example"})[0] == 403
    assert server.ask({"prompt": "a"}, {"Content-Type": "text/plain"})[0] == 415
    assert b" 413 " in server.raw(head + b"Content-Length: 100000000000\r\n\r\n").split(b"\r\n")[0]
    answer = server.raw(head + b"Content-Length: 40000000\r\n\r\n" + b" " * 40_000_000)
    assert not answer or b" 413 " in answer.split(b"\r\n")[0], answer[:100]
    assert server.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200))[:9] in (b"", b"HTTP/1.1 ")
    assert server.raw(b"GET / HTTP/1.1\r\n" + b"x" * 100_000 + b"\r\n\r\n")[:9] in (b"", b"HTTP/1.1 ")
    # Half a request, then nothing.
    begun = time.monotonic()
    answer = server.raw(head + b"Content-Length: 100\r\n\r\n{\"prompt\": ")
    assert b" 408 " in answer.split(b"\r\n")[0], answer[:100]
    assert time.monotonic() - begun < 60
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for half in silent[:50]:
        half.sendall(head)
    begun = time.monotonic()
    assert server.ask({"prompt": "a", "max_tokens": 1})[0] == 200
    print(f"hostile: refused; beside 100 silent connections an answer took {time.monotonic() - begun:.2f} s")
    for half in silent:
        half.close()


def check_end(server):
    """Ctrl-C ends it soon, in the middle of a request, which is answered with 503."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    worker, = children(server.process.pid)
    before = processor_seconds(worker)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 262143}), {"Content-Type": "application/json"})
    while processor_seconds(worker) < before + 0.2:  # until the model computes
        assert server.process.poll() is None, server.said()
        time.sleep(0.01)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    answer = connection.getresponse()
    assert answer.status == 503 and json.loads(answer.read())["error"]["code"] == "server_shutting_down"
    assert server.process.wait(30) == 130, server.said()
    seconds = time.monotonic() - begun
    assert seconds < 15, f"{seconds} s: it waited for the answer, which takes minutes"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0, "somebody still listens"
    print(f"ended in {seconds:.2f} s")


def main(bin_dir):
    package = find_package()
    bin_dir = pathlib.Path(bin_dir).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(TEXT)
        (folder / "val.txt").write_text("The slings and arrows of outrageous fortune\n" * 5)
        (folder / "job.yaml").write_text(JOB)
        subprocess.run([bin_dir / "nsa-worker", "--job", "job.yaml"], cwd=folder, check=True, capture_output=True)
        server = ModelServer(bin_dir, folder, "artifacts/tiny")
        try:
            check_openai_client(server, package)
            check_lm_eval_scores(server, bin_dir, folder)
            check_lm_eval_generates(server, bin_dir, folder)
            check_together(server)
            check_hostile_requests(server)
            check_end(server)
        finally:
            if server.process.poll() is None:
                server.process.terminate()
                server.process.wait(30)


main(*sys.argv[1:])
