"""A decoder with Native Sparse Attention (arXiv 2502.11089) in plain PyTorch.

It computes what the training system computes, in the order of its formulas: rotated keys are compressed, the scores of the compressed keys
choose blocks, three branches attend, a gate adds them. It is written to be read and to be exact, not to be fast: the attention of 256
tokens at a time is computed with masks over all keys.

With transformers:     AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
With PyTorch alone:    from modeling_nsa import NsaForCausalLM; model = NsaForCausalLM.from_folder(FOLDER)

Sequences of a batch must not be padded on the left. There is no cache: each new token costs a forward pass.
"""
import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

try:
    from transformers import PreTrainedModel as _Base
    from transformers.modeling_outputs import CausalLMOutput

    try:
        from transformers.generation import GenerationMixin as _Generation
    except ImportError:
        _Generation = object

    from .configuration_nsa import NsaConfig
except ImportError:
    _Generation = object

    class _Base(nn.Module):
        """What a model needs when transformers is not installed."""

        def __init__(self, config):
            super().__init__()
            self.config = config

        def post_init(self):
            pass

    class CausalLMOutput:
        def __init__(self, loss=None, logits=None):
            self.loss, self.logits = loss, logits

    try:
        from .configuration_nsa import NsaConfig
    except ImportError:
        from configuration_nsa import NsaConfig

_QUERIES = 256  # tokens whose attention is computed together


def wide(x):
    """Norms, rotations, softmax and gates are computed in fp32 at least."""
    return x if x.dtype == torch.float64 else x.float()


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        y = wide(x)
        scale = torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * scale * wide(self.weight)).to(x.dtype)


def rotate(x, base, scale):
    """x [B, S, heads, dk]: each pair (2i, 2i+1) of a head turns by (t / scale) · base^(−2i/dk)."""
    length, width = x.shape[1], x.shape[-1]
    base, scale = torch.tensor([base, scale], dtype=torch.float32).double().tolist()
    frequency = torch.tensor([base ** (-2.0 * i / width) for i in range(width // 2)], dtype=torch.float64)
    angle = (torch.arange(length, dtype=torch.float64) / scale)[:, None] * frequency
    y = wide(x)
    cos = angle.cos().to(y)[None, :, None, :]
    sin = angle.sin().to(y)[None, :, None, :]
    even, odd = y[..., 0::2], y[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def unit(x, eps):
    """Every head of x [..., width] divided by its root mean square."""
    y = wide(x)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


ACTIVATIONS = {"silu": F.silu, "relu2": lambda x: F.relu(x).square()}


class Phi(nn.Module):
    """fc2(silu(fc1(block + position))): a block of l keys or values becomes one."""

    def __init__(self, block, width):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(block, width))
        self.fc1 = nn.Linear(block * width, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, blocks):
        return self.fc2(F.silu(self.fc1((blocks + self.position).flatten(-2))))


def blocks_of(x, block, stride):
    """x [B, S, G, width] → [B, S_cmp, G, l, width]: block i has the tokens [i·d, i·d + l)."""
    if x.shape[1] < block:
        return x.new_zeros(x.shape[0], 0, x.shape[2], block, x.shape[3])
    return x.unfold(1, block, stride).transpose(-1, -2)


def overlap(config, length, blocks):
    """[S_cmp, S_sel]: tokens that compression block i and selection block j share, divided by l."""
    size, chosen = config.block_size, config.selection_size
    begin = torch.arange(blocks)[:, None] * config.block_stride
    first = torch.arange((length + chosen - 1) // chosen)[None, :] * chosen
    shared = torch.minimum(begin + size, first + chosen) - torch.maximum(begin, first)
    return shared.clamp(min=0) / size


def choose(config, scores, t, first):
    """The blocks that each query attends to, as a mask like scores [B, T, G, S_sel].

    Forced: the document's first block, the previous and the current one. Then the highest scores among the blocks between them until there
    are n; the lowest id wins on equal scores, NaN is last.
    """
    ids = torch.arange(scores.shape[-1], device=scores.device)
    current, begin = (t // config.selection_size)[..., None, None], (first // config.selection_size)[..., None, None]
    scores = torch.nan_to_num(scores, nan=torch.finfo(scores.dtype).min)
    forced = (ids == begin) | (ids == current) | (ids == current - 1)
    scores = scores.masked_fill(forced, math.inf).masked_fill((ids < begin) | (ids > current), -math.inf)
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., : config.num_selected]
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order, True)
    return mask & (scores > -math.inf)


def attend(q, k, v, visible):
    """Softmax attention. q [B, T, G, h, dk]; k, v [B, K, G, width]; visible [B, T, G or 1, K]. No visible key gives 0.

    Returns o [B, T, G, h, dv] and the probabilities [B, T, G, h, K].
    """
    scores = torch.einsum("btghd,bkgd->btghk", wide(q), wide(k)) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~visible[:, :, :, None, :], -math.inf)
    p = torch.softmax(scores, dim=-1)
    p = torch.where(visible.any(-1)[:, :, :, None, None], p, torch.zeros_like(p))
    return torch.einsum("btghk,bkgd->btghd", p, wide(v)).to(q.dtype), p


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        c = self.config = config
        self.branches = c.branches_of(layer)
        if set(self.branches) - {"cmp", "sel", "win"}:
            raise ValueError(f"layers: {list(c.layers)} (cmp, sel and win, joined by +)")
        self.W_Q = nn.Linear(c.hidden_size, c.num_attention_heads * c.d_k, bias=False)
        for name in ("sel", "win", "cmp"):
            if name in self.branches:
                setattr(self, f"W_K_{name}", nn.Linear(c.hidden_size, c.num_key_value_heads * c.d_k, bias=False))
                setattr(self, f"W_V_{name}", nn.Linear(c.hidden_size, c.num_key_value_heads * c.d_v, bias=False))
        self.out = nn.Linear(c.num_attention_heads * c.d_v, c.hidden_size, bias=False)
        if len(self.branches) > 1:
            self.gate = nn.ModuleDict(
                {"fc1": nn.Linear(c.d_k, c.d_k // 2), "fc2": nn.Linear(c.d_k // 2, len(self.branches))}
            )
        if "cmp" in self.branches and c.phi == "mlp":
            self.phi_k = Phi(c.block_size, c.d_k)
            self.phi_v = Phi(c.block_size, c.d_v)

    def keys(self, x, name):
        k = getattr(self, f"W_K_{name}")(x).unflatten(-1, (self.config.num_key_value_heads, self.config.d_k))
        return self.turned(k)

    def turned(self, x):
        """Queries or keys as the branches read them."""
        x = unit(x, self.config.rms_norm_eps) if self.config.qk_norm else x
        return rotate(x, self.config.rope_base, self.config.rope_scale)

    def values(self, x, name):
        return getattr(self, f"W_V_{name}")(x).unflatten(-1, (self.config.num_key_value_heads, self.config.d_v))

    def compress(self, x, phi):
        blocks = blocks_of(x, self.config.block_size, self.config.block_stride)
        return blocks.mean(-2) if phi is None else phi(blocks)

    def gates(self, q):
        """q [B, S, G, h, dk] as projected → [B, S, G, branches]."""
        z = wide(self.gate["fc2"](F.silu(self.gate["fc1"](q.mean(3)))))
        return torch.sigmoid(z) if self.config.gate == "sigmoid" else torch.softmax(z, dim=-1)

    def forward(self, x, first):
        """x [B, S, D]; first [B, S], where each token's document begins."""
        c = self.config
        groups = (c.num_key_value_heads, c.num_attention_heads // c.num_key_value_heads)
        plain = self.W_Q(x).unflatten(-1, (c.num_attention_heads, c.d_k))
        q = self.turned(plain).unflatten(2, groups)
        k = {name: self.keys(x, name) for name in self.branches}
        v = {name: self.values(x, name) for name in self.branches}
        compressed = None
        if "cmp" in self.branches:
            phi_k, phi_v = (self.phi_k, self.phi_v) if c.phi == "mlp" else (None, None)
            compressed = (self.compress(k["cmp"], phi_k), self.compress(v["cmp"], phi_v))
        elif "sel" in self.branches:  # blocks are scored with means of the branch's own keys
            compressed = (self.compress(k["sel"], None), None)
        gates = self.gates(plain.unflatten(2, groups)) if len(self.branches) > 1 else None
        parts = []
        for begin in range(0, x.shape[1], _QUERIES):
            t = slice(begin, min(begin + _QUERIES, x.shape[1]))
            outputs = self.attend_all(q[:, t], t, first[:, t], k, v, compressed)
            if gates is None:
                parts.append(outputs[self.branches[0]])
            else:
                order = [name for name in ("cmp", "sel", "win") if name in self.branches]
                parts.append(sum(gates[:, t, :, i, None, None] * outputs[name] for i, name in enumerate(order)))
        return self.out(torch.cat(parts, dim=1).flatten(2).to(x.dtype))

    def attend_all(self, q, span, first, k, v, compressed):
        """The output [B, T, G, h, dv] of every branch for the queries of a span of positions."""
        c, device = self.config, q.device
        t = torch.arange(span.start, span.stop, device=device)[None, :].expand_as(first)
        outputs, probabilities = {}, None
        if compressed is not None:
            keys, values = compressed
            begin = torch.arange(keys.shape[1], device=device) * c.block_stride
            seen = (begin >= first[..., None]) & (begin + c.block_size - 1 <= t[..., None])
            o, probabilities = attend(q, keys, keys if values is None else values, seen[:, :, None])
            if values is not None:
                outputs["cmp"] = o
        length = next(iter(k.values())).shape[1]
        tokens = torch.arange(length, device=device)
        past = (tokens >= first[..., None]) & (tokens <= t[..., None])
        if "sel" in self.branches:
            scores = probabilities.sum(3) @ overlap(c, length, probabilities.shape[-1]).to(probabilities)
            chosen = choose(c, scores, t, first)
            visible = chosen[..., tokens // c.selection_size] & past[:, :, None]
            outputs["sel"], _ = attend(q, k["sel"], v["sel"], visible)
        if "win" in self.branches:
            visible = past & (tokens > t[..., None] - c.window)
            outputs["win"], _ = attend(q, k["win"], v["win"], visible[:, :, None])
        return outputs


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.norm1 = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, layer)
        self.norm2 = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.act = ACTIVATIONS[config.hidden_act]
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(config.hidden_size, config.intermediate_size, bias=False),
                "fc2": nn.Linear(config.intermediate_size, config.hidden_size, bias=False),
            }
        )

    def forward(self, x, first):
        x = x + self.attn(self.norm1(x), first)
        return x + self.mlp["fc2"](self.act(self.mlp["fc1"](self.norm2(x))))


class NsaForCausalLM(_Base, _Generation):
    config_class = NsaConfig
    base_model_prefix = ""
    _no_split_modules = ["Block"]

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm_f = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def set_input_embeddings(self, value):
        self.embed = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def document_starts(self, input_ids):
        """[B, S]: the position of the last separator up to each token; 0 without a document mask."""
        t = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        if not self.config.document_mask or self.config.separator_token_id is None:
            return torch.zeros_like(t)
        starts = torch.where(input_ids == self.config.separator_token_id, t, torch.zeros_like(t))
        return starts.cummax(dim=1).values

    def forward(self, input_ids, attention_mask=None, labels=None, return_dict=True, **_):
        """Logits [B, S, V] in fp32 at least; with labels [B, S] (−100 is ignored) also the mean loss of the next tokens, in nats."""
        if attention_mask is not None and bool((attention_mask[:, 1:] > attention_mask[:, :-1]).any()):
            raise ValueError("attention_mask: a token follows padding (pad on the right only)")
        first = self.document_starts(input_ids)
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, first)
        logits = wide(self.lm_head(self.norm_f(x)))
        if self.config.final_logit_softcapping:
            logits = self.config.final_logit_softcapping * torch.tanh(logits / self.config.final_logit_softcapping)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        if not return_dict:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    @classmethod
    def from_folder(cls, folder, dtype=None):
        """Loads an exported folder without transformers and without safetensors."""
        model = cls(NsaConfig.from_pretrained(folder))
        missing = set(model.state_dict())
        for name, tensor in read_tensors(folder):
            if name not in missing:
                raise ValueError(f"{folder}: tensor {name} is unknown or there twice")
            missing.remove(name)
            with torch.no_grad():
                model.get_parameter(name).copy_(tensor)
        if missing:
            raise ValueError(f"{folder}: no tensor {sorted(missing)[0]}")
        return (model if dtype is None else model.to(dtype)).eval()


def read_tensors(folder):
    """Every (name, tensor) of model.safetensors, or of the files that model.safetensors.index.json lists."""
    files, index = ["model.safetensors"], os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    types = {"F32": torch.float32, "BF16": torch.bfloat16}
    for name in files:
        with open(os.path.join(folder, name), "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
            for key, entry in header.items():
                if key == "__metadata__":
                    continue
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                data = bytearray(file.read(end - begin))
                yield key, torch.frombuffer(data, dtype=types[entry["dtype"]]).reshape(entry["shape"])
