#!/usr/bin/env python3
"""Our GPT-2 tokenizer, of its own files and of a tokenizer.json, gives the tokens of js-tiktoken, on strings that are hard to split and on any text that is named.

    tests/e2e/tokenizer_test.py BIN_DIR [JSON_LINES]…

Needs Node and the package of tests/e2e/tokenizer/package.json (deploy/packages.sh test); skipped (77) without them. The tokens are those that `nsa-worker --prepare-data` writes, so this also reads its shards by the documented bytes.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SEPARATOR = 50256
HARD = [
    "Hello world", " leading", "trailing ", "  two  spaces  ", "a\n\nb\n \n c\t\td \r\n e", "\n", " ", "   ", "\t\n\x0b\x0c\r x",
    "it's it'S we'll WE'LL they've I'm you'd 'tis don''t '''s ' s", "x'sy'ty'rey'vey'my'lly'd", "1234567890 12,345.678 1e-5 0x1F ½ ² ٣٤ Ⅷ",
    "naïve café Ångström œuvre ﬁ ǅ", "e\u0301 combining a\u0308\u0301 \u0301", "日本語のテキスト、句読点。", "한국어 텍스트", "Привет, мир! ΑΒΓ αβγ", "שלום עולם مرحبا",
    "हिन्दी क्षि त्र", "emoji 😀👍🏽👨‍👩‍👧‍👦 🇩🇪", "nbsp\u00a0x\u2003em\u3000ideographic\u2028line\u2029par\x85next\u200bzero\u00ad", " \u00a0 \u00a0x", "\u00a0", "a\u00a0",
    "\x00\x01\x1b[31m\x1c\x1d\x1e\x1f\x7f", "<|endoftext|> is text here", "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n",
    "https://example.com/a?b=c&d=%20#e", "{\"k\": [1, 2, null]}\\\\//__--==++", "AAAAAAAAAAAAAAAAAAAAAAAA", "a" * 300, " " * 100 + "x", "!?" * 70, "é" * 90, "日" * 90,
    "ab" * 400, "\n" * 50, "\u2028" * 5 + "x", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠀀", "\ufeffbom", "\ufffd\uffff", "tab\tand  \t mixed \n\t ", "CamelCaseHTTPServer snake_case kebab-case", "…—–“”‘’«»",
    "Ⅳ ① ㊙ ㍿ ﷽", "i̇ İ ı ſ K Å", "x̶̧̛̭ zalgo", "0٠०০੦", "don't can’t won`t",
]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def find_package():
    found = subprocess.run([HERE.parents[1] / "deploy/node_packages.sh", "--where", HERE / "tokenizer"], capture_output=True, text=True, check=True).stdout
    package = pathlib.Path(found.strip()) / "node_modules/js-tiktoken"
    if not shutil.which("node") or not package.is_dir():
        skip("no node, or no js-tiktoken; deploy/packages.sh test installs both")
    return str(package)


def oracle(*words):
    return subprocess.run(["node", HERE / "tokenizer/tiktoken.mjs", *words], check=True, capture_output=True, text=True).stdout


def documents_of(folder):
    """The documents of a folder of prepared data, without their separators."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["token_bytes"] == 2, manifest["token_bytes"]
    for shard in manifest["shards"]:
        index = (folder / f"{shard['name']}.idx").read_bytes()
        assert index[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<QB", index, 9) == (1, 8)
        sequences, bounds = struct.unpack_from("<QQ", index, 18)
        assert bounds == sequences + 1, "a document of several sequences"
        lengths = struct.unpack_from(f"<{sequences}i", index, 34)
        with open(folder / f"{shard['name']}.bin", "rb") as tokens:
            for length in lengths:
                document = struct.unpack(f"<{length}H", tokens.read(2 * length))
                assert document[0] == SEPARATOR
                yield document[1:]


def compare(worker, tokenizer, lines, place):
    job = {"data": {"source": "jsonl", "path": str(lines), "tokenizer": "gpt2", "tokenizer_path": str(tokenizer)}, "model": {"vocab": 50257}}
    (place / "job.yaml").write_text(json.dumps(job))
    begun = time.monotonic()
    subprocess.run([worker, "--job", place / "job.yaml", "--prepare-data", place / "tokens"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    texts = [json.loads(line)["text"] for line in lines.read_text().split("\n") if line]
    wanted = [tuple(map(int, line.split())) for line in oracle("encode", str(lines)).split("\n") if line]
    found = list(documents_of(place / "tokens/train.tokens"))
    assert len(found) == len(wanted) == len(texts), (len(found), len(wanted), len(texts))
    for text, ours, theirs in zip(texts, found, wanted):
        assert ours == theirs, f"{text[:200]!r}: {ours[:50]}, js-tiktoken {theirs[:50]}"
    size = sum(len(text.encode()) for text in texts)
    print(f"{lines.name}, {tokenizer.name}: {len(texts)} texts, {size} bytes, {sum(map(len, found))} tokens are equal; prepared in {seconds:.1f} s")


def main(bin_dir, *files):
    os.environ["JS_TIKTOKEN"] = find_package()
    print("js-tiktoken", oracle("version").strip())
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "gpt2").mkdir()
        oracle("files", str(place / "gpt2"))
        (place / "hard.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in HARD))
        for lines in [place / "hard.jsonl", *map(pathlib.Path, files)]:
            for tokenizer in [place / "gpt2", place / "gpt2/hf.json"]:
                compare(pathlib.Path(bin_dir) / "nsa-worker", tokenizer, lines, place)


main(*sys.argv[1:])
