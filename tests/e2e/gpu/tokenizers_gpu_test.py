#!/usr/bin/env python3
"""Our tokens of ten megabytes of text are those of Hugging Face's tokenizers, for tokenizers that the library itself trains: byte-level BPE that splits as Llama 3 and as Qwen 2 do, and BPE with byte fallback as Llama 2, Mistral, TinyLlama and Gemma have it.

    tests/e2e/gpu/tokenizers_gpu_test.py BIN_DIR [TEXTS.jsonl[.zst]]    default: shared/data/openstax-train.jsonl.zst in or beside the tree

It needs no GPU, but Python's tokenizers, which machines with transformers have and the distribution has not; skipped (77) without them or without texts. e2e/tokenizer_test does the same with published files, by npm's build of the library.
"""
import copy
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

try:
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers
except ImportError:
    print("skipped: no Python package tokenizers")
    sys.exit(77)

BYTES = 10_000_000
MARK = "\u2581"
CONTRACTIONS, REST = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
UNMARK = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
PREPENDED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": MARK}, REPLACE]}
FALLBACK = {  # what is different from a file without normalizer and pre-tokenizer
    "llama2": {"normalizer": PREPENDED},
    "mistral": {"pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": False}},
    "metaspace": {"pre_tokenizer": {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}},
    "gemma": {"normalizer": REPLACE, "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}},
}
SPECIAL = ["<unk>", "<s>", "</s>"]


def lines_of(path):
    if path.suffix != ".zst":
        return path.open(encoding="utf-8")
    return subprocess.Popen(["zstd", "-dc", path], stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout


def texts_of(path):
    texts, size = [], 0
    for line in lines_of(path):
        texts.append(json.loads(line)["text"])
        size += len(texts[-1].encode())
        if size >= BYTES:
            break
    return texts


def default_texts():
    tree = pathlib.Path(__file__).resolve().parents[3]
    for folder in (tree, tree.parent, pathlib.Path.cwd()):
        path = folder / "shared/data/openstax-train.jsonl.zst"
        if path.exists():
            return path
    print("skipped: no texts; name a file of JSON lines")
    sys.exit(77)


def trained(pre_tokenizer, texts, first, **model):
    tokenizer = tokenizers.Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if not model else []
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=8000, special_tokens=first, initial_alphabet=alphabet, show_progress=False))
    return json.loads(tokenizer.to_str())


def make_files(texts):
    """tokenizer.json by name."""
    some = texts[:: max(1, len(texts) // 200)]
    files = {}
    for name, pattern in (("llama3", LLAMA3), ("qwen2", QWEN2)):
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        files[name] = trained(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), some, ["<|endoftext|>"])
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    # Rare characters have no token, so that some text falls back to bytes.
    plain = [text.replace("\n", " ").encode("latin-1", "ignore").decode("latin-1") for text in some]
    base = trained(pre_tokenizers.Metaspace(), plain, SPECIAL + byte_tokens, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    base["added_tokens"] = [token for token in base["added_tokens"] if token["content"] in SPECIAL]
    base["decoder"] = {"type": "Sequence", "decoders": [UNMARK, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    for name, parts in FALLBACK.items():
        files[name] = {**copy.deepcopy(base), "normalizer": None, "pre_tokenizer": None, **parts}
    return files


def documents_of(folder):
    """The documents that nsa-worker has prepared, without their separators."""
    manifest = json.loads((folder / "manifest.json").read_text())
    width = manifest["token_bytes"]
    for shard in manifest["shards"]:
        index = (folder / f"{shard['name']}.idx").read_bytes()
        (sequences,) = struct.unpack_from("<Q", index, 18)
        with open(folder / f"{shard['name']}.bin", "rb") as tokens:
            for length in struct.unpack_from(f"<{sequences}i", index, 34):
                yield list(struct.unpack(f"<{length}{'H' if width == 2 else 'i'}", tokens.read(width * length))[1:])


def check(worker, place, name, file, texts):
    folder = place / name
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False))
    job = {"data": {"source": "jsonl", "path": str(place / "texts.jsonl"), "tokenizer": "bpe", "tokenizer_path": str(folder)}}
    (folder / "job.yaml").write_text(json.dumps(job))
    begun = time.monotonic()
    subprocess.run([worker, "prepare", folder / "job.yaml", folder / "tokens"], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    # Special tokens are text in training data, so the library does not get them.
    judge = tokenizers.Tokenizer.from_str(json.dumps({**file, "post_processor": None, "added_tokens": [t for t in file["added_tokens"] if not t["special"]]}))
    ours = list(documents_of(folder / "tokens/train.tokens"))
    assert len(ours) == len(texts), (name, len(ours), len(texts))
    for text, found, wanted in zip(texts, ours, judge.encode_batch(texts, add_special_tokens=False)):
        if found != wanted.ids:
            at = next((i for i, (a, b) in enumerate(zip(found, wanted.ids)) if a != b), min(len(found), len(wanted.ids)))
            raise AssertionError(f"{name}: {text[:200]!r}, token {at}: {found[at:at + 20]}, tokenizers {wanted.ids[at:at + 20]}")
    print(f"{name}: {len(texts)} texts, {sum(map(len, ours))} tokens are equal; prepared in {seconds:.1f} s", flush=True)


def main(bin_dir, path=None):
    texts = texts_of(pathlib.Path(path) if path else default_texts())
    print(f"tokenizers {tokenizers.__version__}, {sum(len(text.encode()) for text in texts)} bytes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        for name, file in make_files(texts).items():
            check(pathlib.Path(bin_dir) / "nsa-worker", place, name, file, texts)


main(*sys.argv[1:])
