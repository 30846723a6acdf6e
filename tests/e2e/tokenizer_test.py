#!/usr/bin/env python3
"""Our tokenizers give the tokens of js-tiktoken: GPT-2's, of its own files and of a tokenizer.json, and those of cl100k (which splits as Llama 3 does) and o200k, of a tokenizer.json as Hugging Face's library has it. On strings that are hard to split, on texts that this machine has, and on any text that is named.

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
# File or folder, data.tokenizer, encoding of js-tiktoken, vocabulary, separator.
TOKENIZERS = [
    ("gpt2", "gpt2", "gpt2", 50257, 50256), ("gpt2.json", "gpt2", "gpt2", 50257, 50256), ("gpt2.json", "bpe", "gpt2", 50257, 50256),
    ("cl100k.json", "bpe", "cl100k", 100277, 100257), ("o200k.json", "bpe", "o200k", 200019, 199999),
]
TEXT_BYTES = 600_000  # of texts of this machine; a text of each language and kind that is there
HARD = [
    "Hello world", " leading", "trailing ", "  two  spaces  ", "a\n\nb\n \n c\t\td \r\n e", "\n", " ", "   ", "\t\n\x0b\x0c\r x",
    "it's it'S we'll WE'LL they've I'm you'd 'tis don''t '''s ' s", "x'sy'ty'rey'vey'my'lly'd", "1234567890 12,345.678 1e-5 0x1F ½ ² ٣٤ Ⅷ",
    "naïve café Ångström œuvre ﬁ ǅ", "e\u0301 combining a\u0308\u0301 \u0301", "日本語のテキスト、句読点。", "한국어 텍스트", "Привет, мир! ΑΒΓ αβγ", "שלום עולם مرحبا",
    "हिन्दी क्षि त्र", "emoji 😀👍🏽👨‍👩‍👧‍👦 🇩🇪", "nbsp\u00a0x\u2003em\u3000ideographic\u2028line\u2029par\x85next\u200bzero\u00ad", " \u00a0 \u00a0x", "\u00a0", "a\u00a0",
    "\x00\x01\x1b[31m\x1c\x1d\x1e\x1f\x7f", "<|endoftext|> is text here", "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n",
    "https://example.com/a?b=c&d=%20#e", "{\"k\": [1, 2, null]}\\\\//__--==++", "AAAAAAAAAAAAAAAAAAAAAAAA", "a" * 300, " " * 100 + "x", "!?" * 70, "é" * 90, "日" * 90,
    "ab" * 400, "\n" * 50, "\u2028" * 5 + "x", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠀀", "\ufeffbom", "\ufffd\uffff", "tab\tand  \t mixed \n\t ", "CamelCaseHTTPServer snake_case kebab-case", "…—–“”‘’«»",
    "it'\u017f IT'S'Ve 'LL'x x'D\u017f he's'ſ", "HTTPServer iPhoneOS ÉCOLEnaïve ǅungla ʰaʰA e\u0301E\u0301A", "1234567 ٣٤٥٦ ½½½½ 12٣45", "a/b//c\n//\r\n/ !/\n\n/x", "\n \n\t\n x\n\n  ", " \r\n\u2028\n y", "!\n\n\n?\r\r x",
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


def documents_of(folder, separator):
    """The documents of a folder of prepared data, without their separators."""
    manifest = json.loads((folder / "manifest.json").read_text())
    width = manifest["token_bytes"]
    code, letter = {2: (8, "H"), 4: (4, "i")}[width]
    for shard in manifest["shards"]:
        index = (folder / f"{shard['name']}.idx").read_bytes()
        assert index[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<QB", index, 9) == (1, code)
        sequences, bounds = struct.unpack_from("<QQ", index, 18)
        assert bounds == sequences + 1, "a document of several sequences"
        lengths = struct.unpack_from(f"<{sequences}i", index, 34)
        with open(folder / f"{shard['name']}.bin", "rb") as tokens:
            for length in lengths:
                document = struct.unpack(f"<{length}{letter}", tokens.read(width * length))
                assert document[0] == separator
                yield document[1:]


def prepare(worker, place, lines, file, kind, vocab):
    data = {"source": "jsonl", "path": str(lines), "tokenizer": kind, "tokenizer_path": str(place / file)}
    # bpe has the vocabulary of its file, and so has the job that is written.
    job = {"data": data} if kind == "bpe" else {"data": data, "model": {"vocab": vocab}}
    (place / "job.yaml").write_text(json.dumps(job))
    begun = time.monotonic()
    subprocess.run([worker, "--job", place / "job.yaml", "--prepare-data", place / "tokens"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    assert f"vocab: {vocab}" in (place / "tokens/job.yaml").read_text()
    return seconds


def compare(worker, place, lines):
    texts = [json.loads(line)["text"] for line in lines.read_text().split("\n") if line]
    size = sum(len(text.encode()) for text in texts)
    wanted = {}
    for file, kind, encoding, vocab, separator in TOKENIZERS:
        if encoding not in wanted:
            wanted[encoding] = [tuple(map(int, line.split())) for line in oracle("encode", str(lines), encoding).split("\n") if line]
        seconds = prepare(worker, place, lines, file, kind, vocab)
        found = list(documents_of(place / "tokens/train.tokens", separator))
        assert len(found) == len(wanted[encoding]) == len(texts), (len(found), len(wanted[encoding]), len(texts))
        for text, ours, theirs in zip(texts, found, wanted[encoding]):
            assert ours == theirs, f"{file}: {text[:200]!r}: {ours[:50]}, js-tiktoken {theirs[:50]}"
        print(f"{lines.name}, {file} as {kind}: {len(texts)} texts, {size} bytes, {sum(map(len, found))} tokens are equal; prepared in {seconds:.1f} s")


def texts_of_this_machine():
    """Paragraphs of files that every Debian has: licences, and the time zones and languages in their own words."""
    left = TEXT_BYTES
    for pattern in ["usr/share/common-licenses/*", "usr/share/perl/5.*/unicore/*.txt", "usr/share/zoneinfo/*.tab", "usr/share/doc/*/copyright", "usr/share/doc/*/README*"]:
        kind = TEXT_BYTES // 3
        for path in sorted(pathlib.Path("/").glob(pattern)):
            if not path.is_file() or path.suffix == ".gz" or min(left, kind) <= 0:
                continue
            text = path.read_bytes().decode(errors="ignore").replace("\0", "")[: min(left, kind)]
            left, kind = left - len(text), kind - len(text)
            yield from (text[at : at + 4000] for at in range(0, len(text), 4000))


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    return path


def main(bin_dir, *files):
    os.environ["JS_TIKTOKEN"] = find_package()
    print("js-tiktoken", oracle("version").strip())
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        oracle("files", str(place))
        ours = [write_lines(place / "hard.jsonl", HARD), write_lines(place / "machine.jsonl", texts_of_this_machine())]
        for lines in [*ours, *map(pathlib.Path, files)]:
            compare(pathlib.Path(bin_dir) / "nsa-worker", place, lines)


main(*sys.argv[1:])
