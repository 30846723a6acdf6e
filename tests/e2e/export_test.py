#!/usr/bin/env python3
"""An exported model computes in PyTorch what the worker computes, for every option; imported again, it scores the same bits.

    tests/e2e/export_test.py BIN_DIR

Needs the distribution's PyTorch (deploy/packages.sh torch); without it the test is skipped.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from distribution_torch import torch_or_skip  # noqa: E402

torch = torch_or_skip("the exported model was compared with nothing")

TOKENS = 160
JOB = {
    "model": {"dim": 48, "n_layers": 2, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16, "mlp_ratio": 2},
    "nsa": {"l": 8, "d": 4, "l_sel": 8, "n_sel": 4, "w": 16},
    "data": {"source": "text", "val_fraction": 0, "tokenizer": "byte"},
    "runtime": {"device": "cpu"},
    "train": {"seq_len": TOKENS, "batch_size": 2, "steps": 12, "lr": 0.03, "save_every": 12},
}
# What differs from JOB.
MODELS = {
    "softmax gate, mean compression": {"nsa": {"gate": "softmax", "phi": "avg"}},
    "sigmoid gate, MLP compression": {"nsa": {"gate": "sigmoid", "phi": "mlp"}},
    "positions divided by 4": {"model": {"rope_scale": 4, "rope_base": 500.3}, "nsa": {"phi": "mlp"}},
    "documents": {"nsa": {"gate": "sigmoid", "phi": "mlp"}, "data": {"document_mask": True}},
    "SwiGLU, another epsilon": {"model": {"mlp": "swiglu", "mlp_dim": 80, "norm_eps": 1e-3, "qk_norm": True}},
    "tied embeddings": {"model": {"tie_embeddings": True}},
    "biases": {"model": {"qkv_bias": True}, "nsa": {"layers": ["win", "cmp+sel"]}},
    "rotation of Llama 3": {"model": {"rope_scaling": {"type": "llama3", "factor": 8, "original_seq_len": 64}}},
    "rotation of YaRN": {"model": {"rope_scaling": {"type": "yarn", "factor": 4, "original_seq_len": 2000}, "qk_norm": True}},
    "rotation in windows": {"model": {"rope_layers": "window", "qk_norm": True}, "nsa": {"layers": ["win", "sel"]}},
    "weighted QK-norm": {"model": {"qk_norm": True, "qk_norm_weights": True}},
    "cmp and win": {"nsa": {"branches": ["cmp", "win"]}},
    "win and sel": {"nsa": {"branches": ["win", "sel"]}},
    "cmp and sel": {"nsa": {"branches": ["cmp", "sel"], "phi": "mlp"}},
    "sel with documents": {"nsa": {"branches": ["sel"]}, "data": {"document_mask": True}},
    "win": {"nsa": {"branches": ["win"]}},
    "layers in turn": {"nsa": {"layers": ["win", "cmp+sel"], "phi": "mlp"}},
    "full, win and sel": {"model": {"n_layers": 3}, "nsa": {"layers": ["full", "win", "sel"]}},
    "full without rotation": {"model": {"rope_layers": "window"}, "nsa": {"layers": ["cmp+win", "full"]}},
    "cmp": {"nsa": {"branches": ["cmp"]}},
    "one group, wide keys": {"model": {"d_k": 32, "n_heads": 6, "n_kv_groups": 1}, "data": {"document_mask": True},
                             "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 5, "phi": "mlp", "gate": "sigmoid"}},
    "widths of the paper": {"model": {"d_k": 192, "d_v": 128}, "nsa": {"phi": "mlp", "gate": "sigmoid"}},
    "QK-norm and squared ReLU": {"model": {"qk_norm": True, "activation": "relu2"}, "nsa": {"gate": "sigmoid", "phi": "mlp"}},
    "QK-norm, layers in turn": {"model": {"qk_norm": True}, "nsa": {"layers": ["win", "cmp+sel"]}},
    "a group a head": {"model": {"n_heads": 2}, "nsa": {"l": 4, "l_sel": 4, "n_sel": 5, "w": 64}},
}


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def text_with_documents():
    words = ["the ", "cell ", "of ", "x", "\n", "42 ", "é", "Zq, ", "\0"]
    source = random.Random(1)
    return "".join(source.choice(words) for _ in range(70)).encode()[: TOKENS - 1]


def scores(programs, checkpoint, folder):
    run(programs / "nsa-worker", "score", checkpoint, folder / "text.txt", "-o", folder / "scores.jsonl", "--threads", 1)
    return (folder / "scores.jsonl").read_text()


def log_probabilities(folder, text, dtype=torch.float32):
    """Of every byte of the text, by the code in the exported folder."""
    for name in ("modeling_nsa", "configuration_nsa"):
        sys.modules.pop(name, None)
    sys.path.insert(0, str(folder))
    try:
        from modeling_nsa import NsaForCausalLM
    finally:
        sys.path.pop(0)
    model = NsaForCausalLM.from_folder(str(folder), dtype)
    ids = torch.tensor([[0, *text]])
    with torch.no_grad():
        logits = model(ids).logits
    return torch.log_softmax(logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None])[:, 0]


def check(programs, folder, name, options):
    job = {section: {**keys, **options.get(section, {})} for section, keys in JOB.items()}
    job["data"]["path"] = str(folder / "train.txt")
    job["train"]["out_dir"] = str(folder / "out")
    (folder / "job.yaml").write_text(json.dumps({"name": "exported", **job}))  # JSON is YAML
    run(programs / "nsa-worker", "--job", folder / "job.yaml", "--threads", 1)
    run(programs / "nsactl", "export", folder / "out", folder / "model")
    text = (folder / "text.txt").read_bytes()
    scored = scores(programs, folder / "out", folder)
    expected = torch.tensor([json.loads(line)["logprob"] for line in scored.splitlines()], dtype=torch.float64)
    exact = log_probabilities(folder / "model", text, torch.float64)
    error = (expected - exact).abs().max().item()
    torch_error = (log_probabilities(folder / "model", text) - exact).abs().max().item()
    print(f"{name}: from the result in fp64 the worker is {error:.1e} away, PyTorch in fp32 {torch_error:.1e} ({len(text)} bytes)")
    # Both round in fp32, in other orders. Measured: at most 1.5 times as far, 2026-11-22. score prints nine digits.
    assert error < 4 * torch_error + 1e-7, name

    run(programs / "nsactl", "import", folder / "model", folder / "back")
    assert scores(programs, folder / "back", folder) == scored, f"{name}: the imported model scores other bits"
    run(programs / "nsactl", "export", folder / "out", folder / "half", "--bf16")
    from modeling_nsa import read_tensors  # of the folder that log_probabilities() loaded last

    full, half = dict(read_tensors(folder / "model")), dict(read_tensors(folder / "half"))
    assert full.keys() == half.keys(), name
    for key, tensor in full.items():
        assert torch.equal(tensor.bfloat16(), half[key]), f"{name}: {key} in bf16 is not what PyTorch rounds to"


def main():
    programs = pathlib.Path(sys.argv[1])
    source = random.Random(2)
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory(prefix="nsa-export-") as place:
            folder = pathlib.Path(place)
            (folder / "text.txt").write_bytes(text_with_documents())
            (folder / "train.txt").write_text("".join(source.choice("abcdefgh \n") for _ in range(80_000)))
            check(programs, folder, name, options)
    print(f"{len(MODELS)} models agree; PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
