#!/usr/bin/env python3
"""Random models that transformers makes itself compute the same after `nsactl import`, and are the same models after `nsactl export`.

    tests/e2e/gpu/foreign_models_gpu_test.py BIN_DIR

It needs no GPU, but Python's transformers 5, tokenizers and torch, which the distribution has not; skipped (77) without them. import_foreign_test does the
same with folders and equations of its own.
"""
import json
import math
import pathlib
import random
import re
import subprocess
import sys
import tempfile

try:
    import tokenizers
    import torch
    import transformers
    from tokenizers import models, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SEPARATOR = "<|endoftext|>"
VOCAB = 320
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "max_position_embeddings": 512, "initializer_range": 0.15, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
BASE = {"rope_type": "default", "rope_theta": 1000000.0}
FAMILIES = {
    "Llama": ("Llama", {}),
    "Llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "Llama, heads of 64": ("Llama", {"head_dim": 64, "rms_norm_eps": 1e-5}),
    "Llama, a group a head": ("Llama", {"num_key_value_heads": 4}),
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama, linear": ("Llama", {"rope_parameters": LINEAR}),
    "Llama, YaRN": ("Llama", {"rope_parameters": YARN}),
    "Qwen2": ("Qwen2", {"rope_parameters": BASE}),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "Qwen3": ("Qwen3", {"rope_parameters": BASE}),
    "Qwen3, tied, YaRN": ("Qwen3", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral, a window": ("Mistral", {"sliding_window": 100}),
    "Qwen3, windows in two of three layers": ("Qwen3", {"rope_parameters": BASE, "use_sliding_window": True, "sliding_window": 100,
                                                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "Qwen2, windows from layer 1 on": ("Qwen2", {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1}),
    "Ministral": ("Ministral", {"sliding_window": 100, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(str(word) for word in command)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def make_text():
    source = random.Random(3)
    return "".join(source.choice(["the ", "cell ", "of ", "x", "\n", "42 ", "é", "Zq, ", "membrane "]) for _ in range(150))


def write_tokenizer(folder, text):
    """Returns the number of the separator."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[SEPARATOR], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                              show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.token_to_id(SEPARATOR)


def make_model(family, options, seed):
    """With every tensor random, so that none is like another or 0, as biases and norms of a new model are."""
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.15 + ("norm" in name))
    return model


def log_probabilities(model, ids):
    with torch.no_grad():
        logits = model(ids).logits
    return torch.log_softmax(logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None])[:, 0]


def queries_with_factor(family, options):
    """Pattern of the tensors that take YaRN's factor: those that scale the queries."""
    if options.get("rope_parameters", {}).get("rope_type") != "yarn":
        return r"$^"
    return r"q_norm" if family == "Qwen3" else r"q_proj"


def check(programs, folder, name, family, options, seed):
    model, text = make_model(family, options, seed), make_text()
    model.save_pretrained(folder / "theirs")
    separator = write_tokenizer(folder / "theirs", text)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    run(programs / "nsactl", "import", folder / "theirs", folder / "ours")
    run(programs / "nsa-worker", "score", folder / "ours", folder / "text.txt", "-o", folder / "scores.jsonl", "--threads", 1)
    rows = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    ids = torch.tensor([[separator, *(row["token"] for row in rows)]])
    ours = torch.tensor([row["logprob"] for row in rows], dtype=torch.float64)
    theirs = log_probabilities(model, ids)
    error = (ours - theirs).abs().max().item()
    assert error < 1e-4, f"{name}: {error}"

    run(programs / "nsactl", "export", folder / "ours", folder / "back")
    back = transformers.AutoModelForCausalLM.from_pretrained(folder / "back", dtype=torch.float32).eval()
    same = "Llama" if family == "Mistral" and options["sliding_window"] is None else family  # without a window it is one
    assert type(back).__name__ == f"{same}ForCausalLM", f"{name}: exported as {type(back).__name__}"
    returned = back.state_dict()
    for key, tensor in model.state_dict().items():
        if re.search(queries_with_factor(family, options), key):  # they have YaRN's factor on the logits, and the exported file says 1
            tensor = tensor * (0.1 * math.log(options["rope_parameters"]["factor"]) + 1) ** 2
            assert torch.allclose(tensor, returned[key], rtol=1e-6), f"{name}: {key} does not have the factor after export"
        else:
            assert torch.equal(tensor, returned[key]), f"{name}: {key} is another tensor after export"
    again = (log_probabilities(back, ids) - theirs).abs().max().item()
    assert again < 1e-5, f"{name}: {again} after export"
    print(f"ok: {name}: {len(rows)} tokens, {error:.1e} from ours, {again:.1e} after export", flush=True)


def main():
    programs = pathlib.Path(sys.argv[1])
    torch.set_num_threads(4)
    for seed, (name, (family, options)) in enumerate(FAMILIES.items()):
        with tempfile.TemporaryDirectory(prefix="nsa-foreign-") as folder:
            check(programs, pathlib.Path(folder), name, family, options, seed)
    print(f"{len(FAMILIES)} models agree; transformers {transformers.__version__}, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
