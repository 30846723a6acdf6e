#!/usr/bin/env python3
"""The exported PyTorch model: steps with a cache, padded rows, beams and gradients give what whole rows give, in memory that does not grow with
the square of the tokens.

    tests/common/export/modeling_nsa_test.py

Needs the distribution's PyTorch (deploy/packages.sh torch); without it the test is skipped. tests/e2e/export_test.py compares whole rows with the
worker; tests/e2e/gpu/transformers_gpu_test.py does the rest with transformers.
"""
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/testing"), str(ROOT / "common/export")]
sys.dont_write_bytecode = True
from distribution_torch import torch_or_skip  # noqa: E402

torch = torch_or_skip("the exported model's cache was compared with nothing")
import modeling_nsa  # noqa: E402
from configuration_nsa import NsaConfig  # noqa: E402
from modeling_nsa import NsaCache, NsaForCausalLM  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

ROWS, TOKENS, VOCAB = 3, 137, 64
SMALL = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, d_k=16, d_v=8,
             block_size=8, block_stride=4, selection_size=8, num_selected=4, window=16, separator_token_id=0)
# What differs from SMALL.
MODELS = {
    "sigmoid gate, MLP compression": {},
    "softmax gate, mean compression": {"phi": "avg", "gate": "softmax"},
    "documents": {"document_mask": True},
    "positions divided by 4": {"rope_scale": 4.0, "rope_base": 500.3},
    "QK-norm, squared ReLU": {"qk_norm": True, "hidden_act": "relu2"},
    "SwiGLU": {"mlp": "swiglu", "intermediate_size": 48},
    "tied embeddings": {"tie_word_embeddings": True},
    "biases": {"qkv_bias": True},
    "stretched rotation": {"rope_stretch": {"type": "yarn", "factor": 4.0, "original_seq_len": 2000, "beta_fast": 32.0, "beta_slow": 1.0}},
    "rotation in windows": {"rope_layers": "window", "layers": ["win", "sel"]},
    "weighted QK-norm": {"qk_norm": True, "qk_norm_weights": True},
    "cmp": {"layers": ["cmp"]},
    "sel with documents": {"layers": ["sel"], "document_mask": True},
    "win": {"layers": ["win"]},
    "cmp and win": {"layers": ["cmp+win"]},
    "sel and win": {"layers": ["sel+win"]},
    "cmp and sel": {"layers": ["cmp+sel"]},
    "layers in turn": {"layers": ["win", "cmp+sel"]},
    "full, narrow windows, chosen blocks": {"layers": ["full", "win", "sel"], "num_hidden_layers": 3},
    "full layers without rotation, documents": {"layers": ["full", "win"], "rope_layers": "window", "document_mask": True},
    "dense": {"layers": ["win"], "window": 4096},
    "a window of the token itself": {"window": 1},
    "one group, wide blocks": {"num_key_value_heads": 1, "block_size": 16, "block_stride": 8, "selection_size": 16, "num_selected": 3, "window": 5},
    "a group a head": {"num_key_value_heads": 4, "block_size": 4, "selection_size": 4, "num_selected": 5, "window": 64},
}
PIECES = (30, 1, 1, 1, 13, 1, 5, 4, 50, *[1] * 31)


def model_of(options, dtype=torch.float32):
    """A random model."""
    torch.manual_seed(1)
    model = NsaForCausalLM(NsaConfig(**{**SMALL, **options}))
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.normal_(0, 0.2) if parameter.dim() > 1 else parameter.normal_(1, 0.1)
    return model.to(dtype).eval()


def tokens_of(rows, length, seed=2):
    """Random tokens; one in thirty is the separator."""
    torch.manual_seed(seed)
    return torch.randint(1, VOCAB, (rows, length)).masked_fill(torch.rand(rows, length) < 0.03, 0)


def whole(model, ids):
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def check_close(what, found, wanted, most):
    error = (found - wanted).abs().max().item()
    assert error <= most, f"{what}: {error:.1e} away (at most {most:.0e})"


def check_steps(name, model, most):
    """A cache that grows and one with room from the beginning, filled in pieces and token by token."""
    ids = tokens_of(ROWS, TOKENS)
    wanted = whole(model, ids)
    for length in (None, TOKENS):
        cache, parts = model.new_cache(length), []
        for piece in ids.split(PIECES, dim=1):
            with torch.no_grad():
                parts.append(model(piece, past_key_values=cache).logits)
        assert cache.get_seq_length() == TOKENS
        check_close(f"{name}, cache of {length}", torch.cat(parts, dim=1), wanted, most)


def padded(ids, lengths, side):
    """The first tokens of each row, and the mask. "holes": padding among the tokens."""
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        places = {"left": torch.arange(ids.shape[1] - length, ids.shape[1]), "right": torch.arange(length)}
        places["holes"] = torch.randperm(ids.shape[1])[:length].sort().values
        mask[row, places[side]] = 1
    batch = torch.full_like(ids, 7)
    for row, length in enumerate(lengths):
        batch[row, mask[row] == 1] = ids[row, :length]
    return batch, mask


def check_padding(name, model, most):
    """Rows of a padded batch, and steps after them, against the same rows alone."""
    ids, more, lengths = tokens_of(ROWS, TOKENS), tokens_of(ROWS, 20, seed=3), (TOKENS, 100, 3)
    alone = [whole(model, torch.cat((ids[row : row + 1, :length], more[row : row + 1]), dim=1))[0] for row, length in enumerate(lengths)]
    for side in ("left", "right", "holes"):
        batch, mask = padded(ids, lengths, side)
        cache = model.new_cache()
        with torch.no_grad():
            found = model(batch, attention_mask=mask, past_key_values=cache).logits
            steps = []
            for token in more.split(1, dim=1):
                mask = torch.cat((mask, torch.ones_like(token)), dim=1)
                steps.append(model(token, attention_mask=mask, past_key_values=cache).logits)
        for row, length in enumerate(lengths):
            check_close(f"{name}, padding {side}", found[row, mask[row, :TOKENS] == 1], alone[row][:length], most)
            check_close(f"{name}, steps after padding {side}", torch.cat(steps, dim=1)[row], alone[row][length:], most)


def gradients(model, ids):
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


def check_gradients(name, model):
    """Queries in groups, whose gathered keys are gathered again in the backward pass, and blocks computed again give the same gradients."""
    ids = tokens_of(2, 90)
    model.train()
    loss, wanted = gradients(model, ids)
    for groups, blocks in ((40, False), (40, True), (256, True)):
        modeling_nsa._QUERIES, model.gradient_checkpointing = groups, blocks
        model._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
        again, found = gradients(model, ids)
        check_close(f"{name}: loss", again, loss, 1e-12)
        for one, other in zip(found, wanted):
            check_close(f"{name}: gradients, groups of {groups}", one, other, 1e-10)
    modeling_nsa._QUERIES, model.gradient_checkpointing = 256, False
    assert model(ids, use_cache=None).past_key_values is None, "training keeps a cache"


def check_beams(model):
    """Rows of a cache that are repeated, reordered and chosen."""
    ids, step = tokens_of(2, 50), tokens_of(4, 1, seed=4)
    cache = model.new_cache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
        cache.batch_repeat_interleave(2)
        order = torch.tensor([3, 0, 1, 2])
        cache.reorder_cache(order)
        wanted = whole(model, torch.cat((ids.repeat_interleave(2, dim=0)[order], step), dim=1))[:, -1:]
        check_close("beams", model(step, past_key_values=cache).logits, wanted, 1e-10)
        cache.batch_select_indices(torch.tensor([2]))
        again = whole(model, torch.cat((ids.repeat_interleave(2, dim=0)[order[2:3]], step[2:3], step[:1]), dim=1))[:, -1:]
        check_close("a chosen row", model(step[:1], past_key_values=cache).logits, again, 1e-10)
        cache.reset()
        check_close("a cache that was reset", model(ids, past_key_values=cache).logits, whole(model, ids), 1e-10)


def check_generation(model):
    """The loop of transformers' generate(): the prompt without a cache, then what prepare_inputs_for_generation() makes of all tokens."""
    ids, mask = padded(tokens_of(ROWS, 40), (40, 25, 11), "left")
    prompts = [ids[row, mask[row] == 1] for row in range(ROWS)]
    cache = None
    with torch.no_grad():
        for _ in range(30):
            inputs = model.prepare_inputs_for_generation(ids, past_key_values=cache, attention_mask=mask, use_cache=True, logits_to_keep=1)
            assert cache is None or inputs["input_ids"].shape[1] == 1, "earlier tokens are computed again"
            output = model(**inputs)
            cache = output.past_key_values
            ids = torch.cat((ids, output.logits[:, -1].argmax(-1, keepdim=True)), dim=1)
            mask = torch.cat((mask, torch.ones(ROWS, 1, dtype=mask.dtype)), dim=1)
    for row, prompt in enumerate(prompts):
        text = prompt[None]
        for _ in range(30):
            text = torch.cat((text, whole(model, text)[:, -1].argmax(-1, keepdim=True)), dim=1)
        assert torch.equal(text[0, -30:], ids[row, -30:]), f"row {row}: other tokens than without cache and padding"
    first = model.prepare_inputs_for_generation(ids[:, :0], attention_mask=mask[:, :5], inputs_embeds=model.embed(ids[:, :5]))
    assert "inputs_embeds" in first and "input_ids" not in first


def check_outputs(model):
    """return_dict, logits_to_keep, inputs_embeds and the losses."""
    ids, mask = padded(tokens_of(ROWS, TOKENS), (TOKENS, 100, 3), "left")
    with torch.no_grad():
        output = model(ids, attention_mask=mask, labels=ids)
        assert output.loss is not None and output.past_key_values.get_seq_length() == TOKENS, "use_cache is not the default"
        loss, logits, cache = model(ids, attention_mask=mask, labels=ids, return_dict=False)
        assert torch.equal(logits, output.logits) and torch.equal(loss, output.loss) and isinstance(cache, NsaCache)
        assert len(model(ids, return_dict=False, use_cache=False)) == 1
        check_close("logits_to_keep", model(ids, attention_mask=mask, logits_to_keep=2).logits, output.logits[:, -2:], 1e-12)
        chosen = torch.tensor([5, TOKENS - 1])
        check_close("logits of an index", model(ids, attention_mask=mask, logits_to_keep=chosen).logits, output.logits[:, chosen], 1e-12)
        check_close("inputs_embeds", model(inputs_embeds=model.embed(ids), attention_mask=mask).logits, output.logits, 1e-12)
        # Three rows of 137, 100 and 3 tokens have 136, 99 and 2 next tokens.
        rows = [model(ids[row : row + 1, -length:], labels=ids[row : row + 1, -length:]).loss * (length - 1) for row, length in enumerate((TOKENS, 100, 3))]
        check_close("the loss of padded rows", loss, sum(rows) / 237, 1e-10)
        count = torch.tensor(474)
        check_close("num_items_in_batch", model(ids, attention_mask=mask, labels=ids, num_items_in_batch=count).loss, loss / 2, 1e-10)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        check_close("position_ids", model(ids, attention_mask=mask, position_ids=positions).logits, output.logits, 1e-12)


def check_refused(model):
    """What would compute something else is an error that says what to do."""
    ids, other = tokens_of(2, 10), type("DynamicCache", (), {"get_seq_length": lambda self: 4})()
    cases = {
        "position_ids: other than the places": dict(input_ids=ids, position_ids=torch.arange(10)[None] % 5),
        "attention_mask: [2, 9] (must be [2, 10])": dict(input_ids=ids, attention_mask=torch.ones(2, 9)),
        "attention_mask: [2, 1, 10, 10]": dict(input_ids=ids, attention_mask=torch.ones(2, 1, 10, 10)),
        "input_ids, inputs_embeds: both or neither": dict(),
        "past_key_values: a DynamicCache with tokens": dict(input_ids=ids, past_key_values=other),
        "past_key_values: 10 tokens (max_length is 9)": dict(input_ids=ids, past_key_values=model.new_cache(9)),
        "labels: [2, 10] (the logits are of [2, 1])": dict(input_ids=ids, labels=ids, logits_to_keep=1),
    }
    for words, inputs in cases.items():
        try:
            model(**inputs)
        except ValueError as error:
            assert words in str(error), f"'{words}' is not in '{error}'"
        else:
            raise AssertionError(f"accepted: {words}")
    documents = model_of({"document_mask": True})
    full, more = model.new_cache(), tokens_of(2, 1, seed=5)
    model(ids, past_key_values=full)
    calls = {
        "10 tokens (fewer than the 10 of": lambda: model.prepare_inputs_for_generation(ids, past_key_values=full),
        "pass input_ids": lambda: documents(inputs_embeds=documents.embed(ids)),
        "crop: 3 (must be 10": lambda: full.crop(3),
        "final_logit_softcapping: this version has no softcap": lambda: NsaConfig(**SMALL, final_logit_softcapping=30.0),
    }
    calls["position_ids: other"] = lambda: model(more, past_key_values=full, position_ids=torch.tensor([[9]]))
    for words, call in calls.items():
        try:
            call()
        except ValueError as error:
            assert words in str(error), f"'{words}' is not in '{error}'"
        else:
            raise AssertionError(f"accepted: {words}")
    found = model(more, past_key_values=full, position_ids=torch.tensor([[10]])).logits
    check_close("a step after refused ones", found, whole(model, torch.cat((ids, more), dim=1))[:, -1:], 1e-10)


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that was made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        made = function(*arguments, **(options or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                self.numbers = max(self.numbers, tensor.numel())
        return made


def check_memory(model):
    """Tokens times (window + chosen tokens), not their square; a step reads what it needs."""
    length = 4000
    ids, cache = tokens_of(1, length), model.new_cache()
    with torch.no_grad(), Largest() as prompt:
        model(ids, past_key_values=cache, logits_to_keep=1)
    assert prompt.numbers < length * length / 8, f"a tensor of {prompt.numbers} numbers for {length} tokens"
    kept = {name: tuple(tensor.shape) for name, tensor in cache.layers[0].tensors.items()}
    assert kept["win"][2] == 15 and kept["tail"][2] == 7 and kept["sel"][2] < length + 256 and kept["blocks"][2] < length / 4 + 70, kept


def check_bf16():
    model = model_of({}, torch.bfloat16)
    ids = tokens_of(ROWS, 60)
    wanted, cache = whole(model, ids), model.new_cache()
    with torch.no_grad():
        found = torch.cat([model(piece, past_key_values=cache).logits for piece in ids.split((40, *[1] * 20), dim=1)], dim=1)
    assert wanted.dtype == torch.float32 and cache.layers[0].tensors["sel"].dtype == torch.bfloat16
    assert (found - wanted).abs().mean() < 0.02 * wanted.abs().mean(), "steps in bf16 are not what the whole row gives"


def main():
    for name, options in MODELS.items():
        single, double = model_of(options), model_of(options, torch.float64)
        check_steps(f"{name} in fp32", single, 1e-5)
        check_steps(name, double, 1e-10)
        check_padding(f"{name} in fp32", single, 1e-5)
        check_padding(name, double, 1e-10)
        check_gradients(name, double)
        print(f"{name}: steps, padding and gradients are those of whole rows")
    model = model_of({}, torch.float64)
    for check in (check_beams, check_generation, check_outputs, check_refused, check_memory):
        check(model)
        print(f"{check.__name__}: passed")
    check_bf16()
    print(f"{len(MODELS)} models agree; PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
