#!/usr/bin/env python3
"""Our tokenizers give the tokens of two other programs. js-tiktoken: GPT-2's, of its own files and of a tokenizer.json, and those of cl100k (which splits as Llama 3 does) and o200k, of a tokenizer.json as Hugging Face's library has it. Hugging Face's library itself: the published files of Qwen 2.5, Qwen 3 and DeepSeek V3, and files that do with a text what those of StarCoder 2, GPT-NeoX, Phi 2 and Tekken do, and those of Llama 2, Mistral and Gemma with byte fallback. On strings that are hard to split, on characters that normalization changes, on texts that this machine has, and on any text that is named.

    tests/e2e/tokenizer_test.py BIN_DIR [JSON_LINES]…

Needs Node and the packages of tests/e2e/tokenizer/package.json (deploy/packages.sh test); skipped (77) without them. The tokens are those that `nsa-worker prepare` writes, so this also reads its shards by the documented bytes.
"""
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

HERE = pathlib.Path(__file__).resolve().parent
# File or folder, data.tokenizer, encoding of js-tiktoken, vocabulary, separator.
TOKENIZERS = [
    ("gpt2", "gpt2", "gpt2", 50257, 50256), ("gpt2.json", "gpt2", "gpt2", 50257, 50256), ("gpt2.json", "bpe", "gpt2", 50257, 50256),
    ("cl100k.json", "bpe", "cl100k", 100277, 100257), ("o200k.json", "bpe", "o200k", 200019, 199999),
]
# tokenizer.json, its separator. By Hugging Face's library.
FILES = [
    ("qwen2_5.json", "<|endoftext|>"), ("qwen3.json", "<|endoftext|>"), ("deepseek_v3.json", "<｜end▁of▁sentence｜>"),
    ("starcoder2.json", "<|endoftext|>"), ("numbers.json", "<|endoftext|>"), ("neox.json", "<|endoftext|>"), ("phi2.json", "<|endoftext|>"),
    ("overlapping.json", "<|endoftext|>"), ("nfc.json", "<|endoftext|>"), ("tekken.json", "<|endoftext|>"),
    ("llama2.json", "<s>"), ("llama2_first.json", "<s>"), ("metaspace.json", "<s>"), ("gemma.json", "<s>"), ("stripping.json", "<s>"), ("prepended.json", "<s>"),
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
    "<think>\n1+1=2</think>", "<think><think></think", "a<think>\u0338b", "<tool_call>{}</tool_call>x", "<|fim_prefix|>a<|fim_suffix|>", "<｜User｜>hi<｜Assistant｜>", "<|im_start|>user",
    "<abb>c<ab>c <a<ab> b>c\u0301", "e\u0301e\u0301e\u0301 ée\u0301é e\u0301\u0323e\u0323\u0301", "A\u030aÅ\u212b\u030a", "x" + " " * 23 + "y" + " " * 60, "\t\t\t\t\tx" + "\t" * 20, "日本日 日本語 \"q\"",
    "e" + "\u0301\u0323" * 300, "\u0301\u0323 \u0344\u0345\u0340", "가\u11a8 각\u11a8 \u1100\u1161\u11a8 \u1100\u1161\u11a7 \u1161\u11a8", "\u0958 \u09c7\u09be \u0dd9\u0dcf\u0dca \U0001d15e\U0001d160 豈 神 \u2adc",
    "ไทยจำนวน ๑๒๓๔ ภาษา", "العَرَبِيَّة ٢٠٢٦ لُغَة", "tiếng Việt", "12月25日は3回、１２３４円です。カタカナｶﾀｶﾅ", "第1234章：测试。abc中文def", "x=1234;y=0x1f;foo123bar4567(a1,b22)", "(1) .( a.( ABCdEF.(",
    "#include<vector> $foo ~bar @user.name !!x ?a _b^c `d` |e| {f}", "\x01a \x7fb 1a 12b \t1", "³²¹ ⅓ 1²3", "á1234é5", "…1 “2” ‘3’",
    "Ⅳ ① ㊙ ㍿ ﷽", "i̇ İ ı ſ K Å", "x̶̧̛̭ zalgo", "0٠०০੦", "don't can’t won`t",
]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def find_packages():
    found = subprocess.run([HERE.parents[1] / "deploy/node_packages.sh", "--where", HERE / "tokenizer"], capture_output=True, text=True, check=True).stdout
    packages = pathlib.Path(found.strip()) / "node_modules"
    if not shutil.which("node") or not (packages / "js-tiktoken").is_dir() or not (packages / "@anush008").is_dir():
        skip("no node, or no js-tiktoken and Hugging Face's library; deploy/packages.sh test installs them")
    return packages


def oracle(*words, program="tiktoken.mjs"):
    return subprocess.run(["node", HERE / "tokenizer" / program, *words], check=True, capture_output=True, text=True).stdout


def tokens_of(lines):
    return [tuple(map(int, line.split())) for line in lines.split("\n")[:-1]]


def documents_of(folder, separator):
    """The documents of a folder of prepared data, without their separators."""
    manifest = json.loads((folder / "manifest.json").read_text())
    width = manifest["token_bytes"]
    code, letter = {2: (8, "H"), 4: (4, "i")}[width]
    for shard in manifest["shards"]:
        index = (folder / f"{shard['name']}.idx").read_bytes()
        assert index[:9] == b"MMIDIDX\0\0" and struct.unpack_from("<QB", index, 9) == (1, code)
        sequences, bounds = struct.unpack_from("<QQ", index, 18)
        assert bounds == sequences + 1, "a document that spans several sequences"
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
    subprocess.run([worker, "prepare", place / "job.yaml", place / "tokens"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    assert f"vocab: {vocab}" in (place / "tokens/job.yaml").read_text()
    return seconds


def check(worker, place, lines, tokenizer, wanted, whose):
    file, kind, vocab, separator = tokenizer
    texts = [json.loads(line)["text"] for line in lines.read_text().split("\n") if line]
    size = sum(len(text.encode()) for text in texts)
    seconds = prepare(worker, place, lines, file, kind, vocab)
    found = list(documents_of(place / "tokens/train.tokens", separator))
    assert len(found) == len(wanted) == len(texts), (len(found), len(wanted), len(texts))
    for text, ours, theirs in zip(texts, found, wanted):
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            raise AssertionError(f"{file}: {text[:200]!r}, token {at}: {ours[at : at + 20]}, {whose} {theirs[at : at + 20]}")
    print(f"{lines.name}, {file} as {kind}: {len(texts)} texts, {size} bytes, {sum(map(len, found))} tokens are equal; prepared in {seconds:.1f} s", flush=True)


def compare(worker, place, lines):
    wanted = {}
    for file, kind, encoding, vocab, separator in TOKENIZERS:
        if encoding not in wanted:
            wanted[encoding] = tokens_of(oracle("encode", str(lines), encoding))
        check(worker, place, lines, (file, kind, vocab, separator), wanted[encoding], "js-tiktoken")


def compare_file(worker, place, lines, file, separator):
    parts = json.loads((place / file).read_text())
    ids = {**parts["model"]["vocab"], **{token["content"]: token["id"] for token in parts["added_tokens"]}}
    wanted = tokens_of(oracle("encode", str(lines), str(place / file), program="hugging_face.mjs"))
    check(worker, place, lines, (file, "bpe", max(ids.values()) + 1, ids[separator]), wanted, "Hugging Face's library")


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


def characters():
    """Every character of the planes that have letters, behind a letter, a syllable and an accent and before one; and random runs of those that normalization may change."""
    codes = [*range(1, 0xD800), *range(0xE000, 0x1F000), *range(0x2F800, 0x2FA20), *range(0xE0100, 0xE01F0)]
    for at in range(0, len(codes), 200):
        yield "".join(f"a{chr(code)}\u0327 가{chr(code)}\u0301{chr(code)} " for code in codes[at : at + 200])
    changing = [chr(code) for code in codes if unicodedata.combining(chr(code)) or unicodedata.decomposition(chr(code)) or 0x1100 <= code < 0x1200]
    chance = random.Random(20261123)
    for _ in range(1000):
        yield "".join(chance.choice(changing if chance.random() < 0.9 else "aeiouAEIO 가각") for _ in range(40))


def write_lines(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    return path


def main(bin_dir, *files):
    packages = find_packages()
    os.environ["JS_TIKTOKEN"], os.environ["NODE_PACKAGES"] = str(packages / "js-tiktoken"), str(packages)
    print("js-tiktoken", oracle("version").strip())
    print(oracle("version", program="hugging_face.mjs").strip())
    worker = pathlib.Path(bin_dir) / "nsa-worker"
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        oracle("files", str(place))
        oracle("files", str(place), program="hugging_face.mjs")
        texts = list(texts_of_this_machine())
        decomposed = [unicodedata.normalize(form, text) for form in ("NFD", "NFKD") for text in HARD] + [unicodedata.normalize("NFD", text) for text in texts[::10]]
        for lines in [write_lines(place / "ours.jsonl", [*HARD, *texts]), *map(pathlib.Path, files)]:
            compare(worker, place, lines)
        compare_file(worker, place, write_lines(place / "characters.jsonl", characters()), "nfc.json", "<|endoftext|>")
        for lines in [write_lines(place / "all.jsonl", [*HARD, *texts, *decomposed]), *map(pathlib.Path, files)]:
            for file, separator in FILES:
                compare_file(worker, place, lines, file, separator)


main(*sys.argv[1:])
