"""Configuration of a decoder with Native Sparse Attention (arXiv 2502.11089).

Works with transformers (AutoConfig, trust_remote_code=True) and without it.
"""
import json
import os

try:
    from transformers import PretrainedConfig as _Base
except ImportError:

    class _Base:
        """What a configuration needs when transformers is not installed."""

        def __init__(self, **kwargs):
            for key, value in kwargs.items():
                setattr(self, key, value)

        @classmethod
        def from_pretrained(cls, folder):
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                return cls(**json.load(file))


class NsaConfig(_Base):
    """Sizes and options of the model; the comments name the letters of the paper."""

    model_type = "nsa"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size=256,  # V
        hidden_size=768,  # D
        num_hidden_layers=12,
        num_attention_heads=12,  # H
        num_key_value_heads=2,  # G, groups that share keys and values
        intermediate_size=3072,
        d_k=64,  # width of a query or key head
        d_v=64,  # width of a value head
        rope_base=10000.0,
        rope_scale=1.0,  # divides positions
        rope_layers="all",  # or "window": only layers with the branch win rotate, and no full ones
        rope_stretch=None,  # or a dict: how frequencies are stretched for longer texts, see stretched() of modeling_nsa.py
        rms_norm_eps=1e-6,
        hidden_act="silu",  # between the matrices of an MLP: "silu" or "relu2"
        mlp="plain",  # "plain": fc2(act(fc1(x))), or "swiglu": fc2(act(gate(x)) · fc1(x))
        qkv_bias=False,  # the projections of queries, keys and values add a bias
        qk_norm=False,  # queries and keys divided by their root mean square before rotation
        qk_norm_weights=False,  # then multiplied by a weight for each column of a head
        block_size=32,  # l, tokens in a compression block
        block_stride=16,  # d
        selection_size=64,  # l', tokens in a selection block
        num_selected=16,  # n, with the first, previous and current block
        window=512,  # w, with the token itself; a full layer has all tokens
        phi="mlp",  # compression: "mlp" or "avg"
        gate="sigmoid",  # "sigmoid" or "softmax"
        layers=("cmp+sel+win",),  # branches of the layers, in turn; or "full": dense attention
        document_mask=False,  # attention does not cross the separator
        separator_token_id=None,  # begins a document
        max_position_embeddings=2048,  # tokens of a sequence in training; longer ones compute
        tie_word_embeddings=False,
        use_cache=True,
        **kwargs,
    ):
        if kwargs.pop("final_logit_softcapping", None):
            raise ValueError("config.json: final_logit_softcapping: this version has no softcap; load the model with the Python files that it was exported with")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.intermediate_size = intermediate_size
        self.d_k = d_k
        self.d_v = d_v
        self.rope_base = rope_base
        self.rope_scale = rope_scale
        self.rope_layers = rope_layers
        self.rope_stretch = rope_stretch
        self.rms_norm_eps = rms_norm_eps
        self.hidden_act = hidden_act
        self.mlp = mlp
        self.qkv_bias = qkv_bias
        self.qk_norm = qk_norm
        self.qk_norm_weights = qk_norm_weights
        self.block_size = block_size
        self.block_stride = block_stride
        self.selection_size = selection_size
        self.num_selected = num_selected
        self.window = window
        self.phi = phi
        self.gate = gate
        self.layers = list(layers)
        self.document_mask = document_mask
        self.separator_token_id = separator_token_id
        self.max_position_embeddings = max_position_embeddings
        super().__init__(tie_word_embeddings=tie_word_embeddings, use_cache=use_cache, **kwargs)
        self.use_cache = use_cache

    def is_full(self, layer):
        return self.layers[layer % len(self.layers)] == "full"

    def branches_of(self, layer):
        return ["win"] if self.is_full(layer) else self.layers[layer % len(self.layers)].split("+")
