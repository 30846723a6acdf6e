"""A decoder with Native Sparse Attention (arXiv 2502.11089) in plain PyTorch.

It computes what the training system computes, in the order of its formulas: rotated keys are compressed, the scores of the compressed keys
choose blocks, three branches attend, a gate adds them. A query reads the compressed keys, the blocks that it chose and its window; memory
grows with tokens times (window + chosen tokens), not with the square of the tokens.

With transformers:     AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
With PyTorch alone:    from modeling_nsa import NsaForCausalLM; model = NsaForCausalLM.from_folder(FOLDER)

Rows may be padded anywhere (attention_mask): inside the model each row's tokens stand at the positions 0, 1, 2, …, and padding after them.
NsaCache keeps what later tokens read.
"""
import functools
import json
import math
import os
import struct
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

try:
    from transformers import Cache as _Cache
    from transformers import PreTrainedModel as _Base
    from transformers.modeling_outputs import CausalLMOutputWithPast

    try:
        from transformers.generation import GenerationMixin as _Generation
    except ImportError:
        _Generation = object

    from .configuration_nsa import NsaConfig
except ImportError:
    _Cache = _Generation = object

    class _Base(nn.Module):
        """What a model needs when transformers is not installed."""

        def __init__(self, config):
            super().__init__()
            self.config = config

        def post_init(self):
            pass

    class CausalLMOutputWithPast:
        def __init__(self, loss=None, logits=None, past_key_values=None):
            self.loss, self.logits, self.past_key_values = loss, logits, past_key_values

    try:
        from .configuration_nsa import NsaConfig
    except ImportError:
        from configuration_nsa import NsaConfig

_QUERIES = 256  # at most so many tokens' attention is computed together
_NUMBERS = 1 << 26  # and at most so many numbers of gathered keys or of scores (256 MiB in fp32) are held for them, if 8 tokens need no more
_NUMBERS_OF_CPU = 1 << 22  # 16 MiB: memory that the allocator keeps, new pages cost more than the attention
_GRAIN = 256  # the room of a cache without max_length grows by so many tokens


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


def single(value):
    """A number rounded to fp32, as the training system holds it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def stretched(config, frequency):
    """The frequencies of the pairs for texts that are longer than those of the first training: kept · f + (1 − kept) · f / factor."""
    c, base = config.rope_stretch, single(config.rope_base)
    if c["type"] == "llama3":
        turns = c["original_seq_len"] * frequency / (2 * math.pi)
        kept = ((turns - c["low_freq_factor"]) / (c["high_freq_factor"] - c["low_freq_factor"])).clamp(0, 1)
    else:
        pair = [config.d_k * math.log(c["original_seq_len"] / (c[name] * 2 * math.pi)) / (2 * math.log(base)) for name in ("beta_fast", "beta_slow")]
        first, last = max(math.floor(pair[0]), 0), min(math.ceil(pair[1]), config.d_k - 1)
        pairs = torch.arange(frequency.shape[0], dtype=frequency.dtype, device=frequency.device)
        kept = 1 - ((pairs - first) / (last - first or 0.001)).clamp(0, 1)
    return (1 - kept) * frequency / c["factor"] + kept * frequency


def rotations(config, t, dtype):
    """Cosines and sines [B, S, 1, dk/2] of (t / scale) · base^(−2i/dk), stretched or not, computed in fp64."""
    device, base, width = t.device, single(config.rope_base), config.d_k
    t = t.cpu() if device.type == "mps" else t  # which has no fp64
    frequency = base ** (torch.arange(0, width, 2, dtype=torch.float64, device=t.device) / -width)
    frequency = stretched(config, frequency) if config.rope_stretch else frequency
    angle = (t.double() / single(config.rope_scale))[..., None, None] * frequency
    return angle.cos().to(dtype).to(device), angle.sin().to(dtype).to(device)


def rotate(x, cos, sin):
    """x [B, S, heads, dk]: each pair (2i, 2i+1) of a head turns."""
    y = wide(x)
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
        rows = (blocks + self.position).flatten(-2)
        return self.fc2(F.silu(self.fc1(rows.flatten(0, -2)))).unflatten(0, rows.shape[:-1])


def blocks_of(x, block, stride):
    """x [B, G, S, width] → [B, G, S_cmp, l, width]: block i has the tokens [i·d, i·d + l)."""
    if x.shape[2] < block:
        return x.new_zeros(*x.shape[:2], 0, block, x.shape[3])
    return x.unfold(2, block, stride).transpose(-1, -2)


def overlap(config, blocks, chosen, device):
    """[S_cmp, S_sel]: tokens that compression block i and selection block j share, divided by l."""
    begin = torch.arange(blocks, device=device)[:, None] * config.block_stride
    first = torch.arange(chosen, device=device)[None, :] * config.selection_size
    shared = torch.minimum(begin + config.block_size, first + config.selection_size) - torch.maximum(begin, first)
    return shared.clamp(min=0) / config.block_size


def choose(config, scores, t, first):
    """The ids [B, G, T, n] of the blocks that each query attends to, and which of them count, from scores [B, G, T, S_sel].

    Forced: the document's first block, the previous and the current one. Then the highest scores among the blocks between them until there
    are n; the lowest id wins on equal scores, NaN is last.
    """
    ids = torch.arange(scores.shape[-1], device=scores.device)
    current, begin = t // config.selection_size, first // config.selection_size
    scores = torch.nan_to_num(scores, nan=torch.finfo(scores.dtype).min)
    forced = (ids == begin) | (ids == current) | (ids == current - 1)
    scores = scores.masked_fill(forced, math.inf).masked_fill((ids < begin) | (ids > current), -math.inf)
    best, order = torch.sort(scores, dim=-1, descending=True, stable=True)
    return order[..., : config.num_selected], best[..., : config.num_selected] > -math.inf


def attend(q, k, v, visible):
    """Softmax attention of q [B, G, T, h, dk]. No visible key gives 0.

    Either all queries read the same keys and values [B, G, K, width], or each its own [B, G, T, K, width]; visible [B, G or 1, T, K].
    Returns o [B, G, T, h, dv] and the probabilities [B, G, T, h, K].
    """
    together = k.dim() == 4
    shape, hidden = q.shape[2:4], ~visible.unsqueeze(3)
    rows = wide(q).flatten(2, 3) if together else wide(q)
    scores = rows @ wide(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.unflatten(2, shape) if together else scores
    p = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).masked_fill(hidden, 0)
    o = (p.flatten(2, 3) if together else p) @ wide(v)
    return (o.unflatten(2, shape) if together else o).to(q.dtype), p


class Places(NamedTuple):
    """Where the tokens of a call stand in their rows. All layers share it."""

    t: torch.Tensor  # [B, S], positions; those of padding follow the row's tokens
    first: torch.Tensor  # [B, S], where each token's document begins
    count: torch.Tensor  # [B], tokens that are no padding
    whole: bool  # there is no padding
    cos: torch.Tensor  # rotations of the positions
    sin: torch.Tensor
    shared: torch.Tensor  # overlap() of all blocks that the rows have room for
    room: int  # positions that rows have room for, a multiple of l'


class LayerCache:
    """What later tokens read of a layer: by position the keys and values of selection and of compression blocks; of the others the last ones."""

    is_sliding = is_compileable = False
    keys = values = None  # as transformers' layers name them

    def __init__(self, keeps=True, fixed=False):
        """keeps: for another call. fixed: no tensor changes its shape after the first call."""
        self.keeps, self.fixed, self.tensors = keeps, fixed, {}

    @property
    def is_initialized(self):
        return bool(self.tensors)

    def has(self, name):
        return name in self.tensors

    def recent(self, name, x, size, places):
        """What is kept of `name` and then x [B, G, S, width]; keeps the last `size` tokens of each row, or fewer at its beginning."""
        old = self.tensors.get(name)
        if old is None:
            old = x.new_zeros(*x.shape[:2], min(size, places.room) if self.fixed else 0, x.shape[3])
        both = torch.cat((old, x), dim=2)
        if self.keeps:
            kept = old.shape[2] if self.fixed else min(size, both.shape[2])
            if places.whole:
                self.tensors[name] = both[:, :, both.shape[2] - kept :]
            else:
                last = places.count[:, None] + torch.arange(old.shape[2] - kept, old.shape[2], device=x.device)
                self.tensors[name] = both.gather(2, index_like(last.clamp(min=0), both))
        return both

    def by_place(self, name, x, at, room):
        """All that is kept of `name`, [B, G, room, width], after x [B, G, N, width] was put at the places `at` [B, N], at first from 0 on."""
        old = self.tensors.get(name)
        if old is None:
            new = F.pad(x, (0, 0, 0, room - x.shape[2]))
        else:
            if old.shape[2] < room:
                old = F.pad(old, (0, 0, 0, room - old.shape[2]))
            index = index_like(at, x)
            new = old.scatter(2, index, x) if torch.is_grad_enabled() else old.scatter_(2, index, x)
        if self.keeps:
            self.tensors[name] = new
        return new

    def each(self, change):
        self.tensors = {name: change(tensor) for name, tensor in self.tensors.items()}


def index_like(index, x):
    """index [B, N] for gather and scatter along dimension 2 of x [B, G, …, width]."""
    return index.view(index.shape[0], 1, -1, 1).expand(-1, x.shape[1], -1, x.shape[3])


class NsaCache(_Cache):
    """The keys and values of a batch of rows, for NsaForCausalLM. With max_length it has room for so many tokens from the beginning, and a step
    of one token always computes with the same shapes, as torch.compile likes it."""

    def __init__(self, config, max_length=None):
        layers = [LayerCache(fixed=max_length is not None) for _ in range(config.num_hidden_layers)]
        if _Cache is not object:
            super().__init__(layers=layers)
        self.layers = layers
        self.config, self.max_length = config, max_length
        self.reset()

    def reset(self):
        for layer in self.layers:
            layer.tensors = {}
        self.columns = 0  # of the tokens that were given, padding included
        self.room = 0
        self.lengths = self.starts = None  # [B]: tokens of each row, and where its last document begins

    def make_room(self, more):
        """Room for `more` tokens a row. Returns it as a multiple of l'."""
        size, needed = self.config.selection_size, self.columns + more
        if self.max_length is not None and needed > self.max_length:
            raise ValueError(f"past_key_values: {needed} tokens (max_length is {self.max_length}); make a larger cache")
        if self.max_length is not None:
            self.room = -(-self.max_length // size) * size
        elif self.room < needed:
            grain = size * max(1, _GRAIN // size)
            self.room = -(-needed // grain) * grain
        return self.room

    def each(self, change):
        """Changes what is kept of the rows."""
        for layer in self.layers:
            layer.each(change)
        if self.lengths is not None:
            self.lengths, self.starts = change(self.lengths), change(self.starts)

    def get_seq_length(self, layer_idx=0):
        return self.columns

    def get_max_cache_shape(self, layer_idx=0):
        return -1 if self.max_length is None else self.max_length

    def get_mask_sizes(self, query, layer_idx=0):
        return self.columns + (query if isinstance(query, int) else query.shape[0]), 0

    def update(self, *_, **__):
        raise NotImplementedError("NsaCache: update(): not by keys and values alone; the layers of NsaForCausalLM fill it")

    def crop(self, max_length):
        if max_length != self.columns:
            raise ValueError(f"NsaCache: crop: {max_length} (must be {self.columns}: older keys are gone); generate without an assistant model")

    def reorder_cache(self, beam_idx):
        self.each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats):
        self.each(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices):
        self.each(lambda x: x[indices.to(x.device)])


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        c = self.config = config
        self.branches, self.full = c.branches_of(layer), c.is_full(layer)
        if set(self.branches) - {"cmp", "sel", "win"}:
            raise ValueError(f"layers: {list(c.layers)} (cmp, sel and win, joined by +, or full)")
        if c.rope_layers not in ("all", "window"):
            raise ValueError(f"rope_layers: {c.rope_layers!r} (all or window)")
        self.rotates = c.rope_layers == "all" or ("win" in self.branches and not self.full)
        self.W_Q = nn.Linear(c.hidden_size, c.num_attention_heads * c.d_k, bias=c.qkv_bias)
        for name in ("sel", "win", "cmp"):
            if name in self.branches:
                setattr(self, f"W_K_{name}", nn.Linear(c.hidden_size, c.num_key_value_heads * c.d_k, bias=c.qkv_bias))
                setattr(self, f"W_V_{name}", nn.Linear(c.hidden_size, c.num_key_value_heads * c.d_v, bias=c.qkv_bias))
        self.out = nn.Linear(c.num_attention_heads * c.d_v, c.hidden_size, bias=False)
        if c.qk_norm_weights:
            self.q_norm, self.k_norm = RmsNorm(c.d_k, c.rms_norm_eps), RmsNorm(c.d_k, c.rms_norm_eps)
        if len(self.branches) > 1:
            self.gate = nn.ModuleDict(
                {"fc1": nn.Linear(c.d_k, c.d_k // 2), "fc2": nn.Linear(c.d_k // 2, len(self.branches))}
            )
        if "cmp" in self.branches and c.phi == "mlp":
            self.phi_k = Phi(c.block_size, c.d_k)
            self.phi_v = Phi(c.block_size, c.d_v)

    def projected(self, x, places):
        """Queries [B, G, S, h, dk] as projected and as the branches read them, and by branch keys and values [B, G, S, dk + dv]."""
        c, shape = self.config, x.shape[:2]
        rows = x.flatten(0, 1)  # a matrix takes half of the calls
        keys = [getattr(self, f"W_K_{name}")(rows) for name in self.branches]
        plain = self.W_Q(rows)
        heads = torch.cat((plain, *keys), dim=-1).view(*shape, -1, c.d_k)
        if c.qk_norm_weights:
            heads = torch.cat((self.q_norm(heads[:, :, : c.num_attention_heads]), self.k_norm(heads[:, :, c.num_attention_heads :])), dim=2)
        elif c.qk_norm:
            heads = unit(heads, c.rms_norm_eps)
        if self.rotates:
            heads = rotate(heads, places.cos, places.sin)
        q, keys = heads.split([c.num_attention_heads, c.num_key_value_heads * len(keys)], dim=2)
        groups, parts = (c.num_key_value_heads, -1, c.d_k), (len(self.branches), c.num_key_value_heads, -1)
        values = torch.cat([getattr(self, f"W_V_{name}")(rows) for name in self.branches], dim=-1)
        both = torch.cat((keys.unflatten(2, parts[:2]), values.view(*shape, *parts)), dim=-1).transpose(2, 3).transpose(1, 2)
        both = dict(zip(self.branches, both.unbind(3)))
        return plain.view(*shape, *groups).transpose(1, 2), q.unflatten(2, groups[:2]).transpose(1, 2), both

    def gates(self, q):
        """q [B, G, S, h, dk] as projected → [B, G, S, branches]."""
        mean = q.mean(3)
        z = wide(self.gate["fc2"](F.silu(self.gate["fc1"](mean.flatten(0, 2))))).unflatten(0, mean.shape[:3])
        return torch.sigmoid(z) if self.config.gate == "sigmoid" else torch.softmax(z, dim=-1)

    def compress(self, x, places, kept):
        """Keys and values of all compression blocks [B, G, S_cmp, dk + dv]; x [B, G, S, dk + dv] are those of the new tokens."""
        c = self.config
        size, stride = c.block_size, c.block_stride
        at, known = None, kept.has("blocks")
        both = kept.recent("tail", x, size - 1, places)
        if known:  # the blocks that end among the new tokens, or after them: those are not visible yet, and are computed again
            before, length = places.t[:, :1], both.shape[2]
            new = torch.arange(-(-x.shape[2] // stride), device=x.device)
            at = torch.div(before - size + stride, stride, rounding_mode="floor").clamp(min=0) + new
            slots = at[..., None] * stride + torch.arange(size, device=x.device) + (length - x.shape[2] - before)[..., None]
            blocks = both.gather(2, index_like(slots.clamp(max=length - 1).flatten(1), both)).unflatten(2, slots.shape[1:])
            at = at.clamp(max=places.shared.shape[0] - 1)
        else:
            blocks = blocks_of(x, size, stride)
        if "cmp" in self.branches and c.phi == "mlp":
            blocks = torch.cat((self.phi_k(blocks[..., : c.d_k]), self.phi_v(blocks[..., c.d_k :])), dim=-1)
        else:  # without the branch, blocks are scored with means of the keys of selection
            blocks = blocks.mean(-2)
        return kept.by_place("blocks", blocks, at, places.shared.shape[0])

    def remember(self, both, places, kept):
        """The keys and values that queries read, by branch; "blocks" are the compressed ones."""
        c, read = self.config, {}
        if "win" in both:
            read["win"] = kept.recent("win", both["win"], places.room if self.full else c.window - 1, places)
        if "sel" in both:  # [B, G, S_sel, l', width]
            read["sel"] = kept.by_place("sel", both["sel"], places.t, places.room).unflatten(2, (-1, c.selection_size))
        if "cmp" in both or "sel" in both:
            read["blocks"] = self.compress(both["cmp" if "cmp" in both else "sel"], places, kept)
        return read

    def queries_together(self, batch, places):
        """How many tokens' attention is computed together."""
        c, numbers = self.config, _NUMBERS_OF_CPU if places.t.device.type == "cpu" else _NUMBERS
        blocks, chosen = places.shared.shape
        most = {
            "cmp": c.num_attention_heads * blocks,
            "sel": c.num_key_value_heads * min(c.num_selected, chosen) * c.selection_size * (c.d_k + c.d_v),
            "win": c.num_attention_heads * (places.room if self.full else min(c.window + _QUERIES, places.room)),
        }
        most["sel"] = max(most["sel"], most["cmp"])
        return max(8, min(_QUERIES, numbers // (batch * max(most[name] for name in self.branches))))

    def forward(self, x, places, kept=None):
        """x [B, S, D]."""
        plain, q, both = self.projected(x, places)
        gates = self.gates(plain) if len(self.branches) > 1 else None
        read = self.remember(both, places, LayerCache(keeps=False) if kept is None else kept)
        length, together = x.shape[1], self.queries_together(x.shape[0], places)
        parts = []
        for begin in range(0, length, together):
            span = slice(begin, min(begin + together, length))
            arguments = (q[:, :, span], places.t[:, span], places.first[:, span], places.shared, read, length - begin)
            if torch.is_grad_enabled() and length > together:  # what was gathered for all queries at once would not fit
                outputs = checkpoint(self.attend_all, *arguments, use_reentrant=False)
            else:
                outputs = self.attend_all(*arguments)
            order = [outputs[name] for name in ("cmp", "sel", "win") if name in self.branches]
            if gates is not None:
                weights = gates[:, :, span].unflatten(-1, (-1, 1, 1)).unbind(3)
                order = [functools.reduce(torch.add, map(torch.mul, weights, order))]
            parts.append(order[0])
        return self.out(torch.cat(parts, dim=2).transpose(1, 2).flatten(2).to(x.dtype))

    def attend_all(self, q, t, first, shared, read, left):
        """The output [B, G, T, h, dv] of every branch for queries at the positions t [B, T]; `left` tokens come from the first of them on."""
        c, outputs = self.config, {}
        t, first = t.unsqueeze(1).unsqueeze(3), first.unsqueeze(1).unsqueeze(3)
        if "blocks" in read:
            k, v = read["blocks"].split([c.d_k, c.d_v], dim=-1)
            begin = torch.arange(k.shape[2], device=q.device) * c.block_stride
            outputs["cmp"], p = attend(q, k, v, (begin >= first) & (begin + c.block_size - 1 <= t))
        if "sel" in read:
            outputs["sel"] = self.attend_chosen(q, t, first, p.sum(3) @ shared.to(p), read["sel"])
        if "win" in read:
            window = read["win"].shape[2] if self.full else c.window
            own = read["win"].shape[2] - left  # where the first query's own key stands
            near = slice(max(0, own - window + 1), own + q.shape[2])
            k, v = read["win"][:, :, near].split([c.d_k, c.d_v], dim=-1)
            at = t[:, :, :1] + torch.arange(near.start - own, near.stop - own, device=q.device)
            outputs["win"], _ = attend(q, k, v, (at <= t) & (at > t - window) & (at >= first))
        return outputs

    def attend_chosen(self, q, t, first, scores, blocks):
        """blocks [B, G, S_sel, l', dk + dv]."""
        c, size = self.config, self.config.selection_size
        ids, counts = choose(c, scores, t, first)
        at = ids[..., None] * size + torch.arange(size, device=q.device)
        visible = counts[..., None] & (at >= first[..., None]) & (at <= t[..., None])
        rows = torch.arange(blocks.shape[0] * blocks.shape[1], device=q.device).view(*blocks.shape[:2], 1, 1) * blocks.shape[2]
        gathered = blocks.flatten(0, 2).index_select(0, (rows + ids).flatten()).view(*at.shape, -1).flatten(3, 4)
        k, v = gathered.split([c.d_k, c.d_v], dim=-1)
        return attend(q, k, v, visible.flatten(3))[0]


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.norm1 = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = Attention(config, layer)
        self.norm2 = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.act = ACTIVATIONS[config.hidden_act]
        first = ("gate", "fc1") if config.mlp == "swiglu" else ("fc1",)
        self.mlp = nn.ModuleDict({name: nn.Linear(config.hidden_size, config.intermediate_size, bias=False) for name in first})
        self.mlp["fc2"] = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x, places, kept=None):
        x = x + self.attn(self.norm1(x), places, kept)
        h = self.norm2(x)
        units = self.mlp["fc1"](h)
        units = self.act(self.mlp["gate"](h)) * units if "gate" in self.mlp else self.act(units)
        return x + self.mlp["fc2"](units)


def new_columns(attention_mask, x, before):
    """Which of the tokens x [B, S, D] are no padding, [B, S]; None for all. `before` tokens are in the cache."""
    if attention_mask is None:
        return None
    rows, length = x.shape[:2]
    if attention_mask.dim() != 2 or attention_mask.shape[0] != rows or attention_mask.shape[1] not in (length, before + length):
        raise ValueError(f"attention_mask: {list(attention_mask.shape)} (must be {[rows, before + length]}); pass the tokenizer's")
    return attention_mask[:, -length:].to(x.device) != 0


def check_positions(position_ids, t, count):
    """Positions follow from attention_mask: others, as of rows that are packed without padding, would compute something else."""
    real = t < t[:, :1] + count[:, None]
    if not torch.equal(position_ids.to(t.device).expand_as(t)[real], t[real]):
        raise ValueError("position_ids: other than the places of the tokens in their rows (attention_mask tells them); leave them out")


def next_token_loss(logits, labels, mask, num_items):
    """The mean of the labels that are neither −100, nor padding, nor after padding; or their sum / num_items."""
    if logits.shape[:2] != labels.shape:
        raise ValueError(f"labels: {list(labels.shape)} (the logits are of {list(logits.shape[:2])}); pass no logits_to_keep with labels")
    targets = labels[:, 1:].to(logits.device)
    if mask is not None:
        targets = targets.masked_fill(~(mask[:, 1:] & mask[:, :-1]).to(logits.device), -100)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="mean" if num_items is None else "sum")
    if num_items is None:
        return loss
    return loss / (num_items.to(loss.device) if torch.is_tensor(num_items) else num_items)


class NsaForCausalLM(_Base, _Generation):
    config_class = NsaConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm_f = RmsNorm(config.hidden_size, config.rms_norm_eps)
        tied = config.tie_word_embeddings  # then the embedding is the head, and there is nothing to tie
        self.lm_head = None if tied else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.gradient_checkpointing = False  # transformers sets it, and the function that does it
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def set_input_embeddings(self, value):
        self.embed = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # forward() makes an NsaCache

    def document_starts(self, ids, t, before):
        """[B, S]: the position of the last separator up to each token, `before` [B] if there is none; 0 without a document mask."""
        if not self.config.document_mask or self.config.separator_token_id is None:
            return torch.zeros_like(t)
        if ids is None:
            raise ValueError("inputs_embeds: no token ids (the model's documents begin at separators); pass input_ids")
        starts = torch.where(ids == self.config.separator_token_id, t, before[:, None].expand_as(t))
        return starts.cummax(dim=1).values

    def places(self, ids, x, count, cache, position_ids):
        """The Places of the tokens x [B, S, D], `count` in each row or all; the cache moves on by them. position_ids are checked."""
        c, (rows, length) = self.config, x.shape[:2]
        room = -(-length // c.selection_size) * c.selection_size if cache is None else cache.make_room(length)
        zeros, whole = torch.zeros(rows, dtype=torch.long, device=x.device), count is None
        count = zeros + length if whole else count
        known = cache is not None and cache.lengths is not None
        before, start = (cache.lengths.to(x.device), cache.starts.to(x.device)) if known else (zeros, zeros)
        t = before[:, None] + torch.arange(length, device=x.device)
        if position_ids is not None:
            check_positions(position_ids, t, count)
        first = self.document_starts(ids, t, start)
        if cache is not None:
            cache.columns += length
            cache.lengths = before + count
            cache.starts = torch.cat((start[:, None], first), dim=1).gather(1, count[:, None])[:, 0]
        cos, sin = rotations(c, t, wide(x).dtype)
        blocks = max(0, room - c.block_size + c.block_stride) // c.block_stride + 1  # the last one is never complete
        return Places(t, first, count, whole, cos, sin, overlap(c, blocks, room // c.selection_size, x.device), room)

    def new_cache(self, max_length=None):
        """An empty NsaCache, to pass as past_key_values."""
        return NsaCache(self.config, max_length)

    def cache_for(self, past_key_values, use_cache):
        """The NsaCache to fill, or None."""
        if isinstance(past_key_values, NsaCache):
            return past_key_values
        if past_key_values is not None and past_key_values.get_seq_length() > 0:
            raise ValueError(f"past_key_values: a {type(past_key_values).__name__} with tokens (must be an NsaCache); pass model.new_cache()")
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", True) and not torch.is_grad_enabled()
        if self.training and self.gradient_checkpointing:
            use_cache = False  # a block that is computed twice would fill it twice
        return self.new_cache() if use_cache else None

    def run_blocks(self, x, places, cache):
        for layer, block in enumerate(self.blocks):
            kept = None if cache is None else cache.layers[layer]
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(block.__call__, x, places, kept)
            else:
                x = block(x, places, kept)
        return self.norm_f(x)

    def logits_of(self, hidden):
        """In fp32 at least."""
        head = self.embed if self.lm_head is None else self.lm_head
        return wide(F.linear(hidden, head.weight))

    def forward(
        self,
        input_ids: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
        past_key_values=None,
        inputs_embeds: Optional[torch.Tensor] = None,
        labels: Optional[torch.Tensor] = None,
        use_cache: Optional[bool] = None,
        logits_to_keep=0,
        num_items_in_batch=None,
        return_dict: Optional[bool] = None,
        **kwargs,
    ):
        """Logits [B, S, V] in fp32 at least; with labels [B, S] (−100 is ignored) also the mean loss of the next tokens, in nats.

        attention_mask [B, S], or of all tokens since the cache was empty: 0 is padding. logits_to_keep: only those of the last tokens, or of
        the tokens of an index. num_items_in_batch: what the loss is divided by in place of the number of labels.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids, inputs_embeds: both or neither given (must be one); pass input_ids")
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self.cache_for(past_key_values, use_cache)
        mask = new_columns(attention_mask, x, 0 if cache is None else cache.columns)
        count = None if mask is None else mask.sum(1)
        order = None
        if mask is not None and x.shape[1] > 1:
            order = torch.sort((~mask).int(), dim=1, stable=True).indices  # tokens, then padding
            x = x.gather(1, order[..., None].expand_as(x))
        ids = input_ids if order is None or input_ids is None else input_ids.gather(1, order)
        if position_ids is not None and order is not None:
            position_ids = position_ids.expand_as(order).to(order.device).gather(1, order)
        hidden = self.run_blocks(x, self.places(ids, x, count, cache, position_ids), cache)
        if order is not None:
            back = order.argsort(dim=1).to(hidden.device)
            hidden = hidden.gather(1, back[..., None].expand_as(hidden))
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        keep = keep if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.logits_of(hidden[:, keep])
        loss = None if labels is None else next_token_loss(logits, labels, mask, num_items_in_batch)
        if return_dict is None:
            return_dict = getattr(self.config, "return_dict", True)
        if return_dict:
            return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
        return tuple(part for part in (loss, logits, cache) if part is not None)

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, inputs_embeds=None, use_cache=True, logits_to_keep=None, **kwargs
    ):
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        length = (input_ids if attention_mask is None else attention_mask).shape[1]
        new = length - seen
        if new < 1:
            raise ValueError(f"past_key_values: {seen} tokens (fewer than the {length} of the text); pass a longer text or an empty cache")
        inputs = {"input_ids": input_ids[:, -new:]}
        if inputs_embeds is not None and seen == 0:
            inputs = {"inputs_embeds": inputs_embeds}
        inputs.update(attention_mask=attention_mask, past_key_values=past_key_values, use_cache=use_cache)
        return inputs if logits_to_keep is None else {**inputs, "logits_to_keep": logits_to_keep}

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
