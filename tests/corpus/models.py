"""Models of ``transformers`` and models defined here, in their published sizes, for the device ``"meta"``.

Layers are identical, so each model has two; all other sizes are as published. The small form of a
model has the same widths and fewer words or images.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

from tests.bridge.large_models import every_expert
from tests.needs import needs

torch = needs("torch")
nn, F = torch.nn, torch.nn.functional

Make = Callable[[bool], tuple[Any, tuple[Any, ...]]]  # whether the form is small -> a model and its arguments
BFLOAT16, FLOAT = "bfloat16", "float32"

_LENGTH: Final = 256  # tokens of the small form
_LAYERS: Final = (
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)
# Class of the model, tokens per input, and the options that differ from the defaults of ``transformers``.
_TEXT: Final[dict[str, tuple[str, int, dict[str, Any]]]] = {
    "Llama 8B": ("LlamaForCausalLM", 4096, {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "max_position_embeddings": 8192, "rope_theta": 500000.0}),
    "GPT-2 XL": ("GPT2LMHeadModel", 1024, {"n_embd": 1600, "n_head": 25}),
    "Mixtral 8x7B": ("MixtralForCausalLM", 2048, {"max_position_embeddings": 32768}),
    "Mistral 7B": ("MistralForCausalLM", 4096, {}),
    "Gemma 7B": ("GemmaForCausalLM", 2048, {}),
    "Gemma-2 9B": ("Gemma2ForCausalLM", 2048, {
        "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_key_value_heads": 8}),
    "Qwen2 7B": ("Qwen2ForCausalLM", 2048, {
        "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
        "vocab_size": 152064}),
    "Qwen3 8B": ("Qwen3ForCausalLM", 2048, {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "Phi-2": ("PhiForCausalLM", 2048, {
        "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "partial_rotary_factor": 0.4}),
    "Phi-3 mini": ("Phi3ForCausalLM", 2048, {}),
    "Falcon 7B": ("FalconForCausalLM", 2048, {}),
    "GPT-NeoX 20B": ("GPTNeoXForCausalLM", 2048, {}),
    "GPT-J 6B": ("GPTJForCausalLM", 2048, {}),
    "BLOOM 7B": ("BloomForCausalLM", 2048, {"hidden_size": 4096, "n_head": 32}),
    "OPT 6.7B": ("OPTForCausalLM", 2048, {
        "hidden_size": 4096, "ffn_dim": 16384, "num_attention_heads": 32, "word_embed_proj_dim": 4096}),
    "Cohere": ("CohereForCausalLM", 2048, {}),
    "OLMo 2": ("Olmo2ForCausalLM", 2048, {}),
    "StableLM 3B": ("StableLmForCausalLM", 2048, {}),
    "Granite": ("GraniteForCausalLM", 2048, {"embedding_multiplier": 12.0, "residual_multiplier": 0.22}),
    "Nemotron": ("NemotronForCausalLM", 2048, {}),
    "Mamba 2.8B": ("MambaForCausalLM", 4, {"hidden_size": 2560, "state_size": 16, "use_mambapy": False}),
    "BERT-large": ("BertForMaskedLM", 512, {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}),
    "RoBERTa-base": ("RobertaForMaskedLM", 512, {"max_position_embeddings": 514}),
    "ALBERT xxlarge": ("AlbertForMaskedLM", 512, {}),
    "ELECTRA": ("ElectraForMaskedLM", 512, {}),
    "DeBERTa-v2 xlarge": ("DebertaV2ForMaskedLM", 512, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "FNet": ("FNetForMaskedLM", 512, {}),
    "T5-large": ("T5ForConditionalGeneration", 512, {
        "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_heads": 16, "decoder_start_token_id": 0}),
    "BART-large": ("BartForConditionalGeneration", 1024, {}),
}
# Class of the model, images per batch, side of an image, and the options that differ from the defaults.
_IMAGES: Final[dict[str, tuple[str, int, int, dict[str, Any]]]] = {
    "ViT-H": ("ViTModel", 8, 224, {
        "hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 16, "patch_size": 14}),
    "ResNet-50": ("ResNetModel", 32, 224, {}),
    "ConvNeXt-T": ("ConvNextModel", 32, 224, {}),
    "ConvNeXt-V2": ("ConvNextV2Model", 16, 224, {}),
    "Swin-T": ("SwinModel", 16, 224, {}),
}


class _Loss(nn.Module):
    """A model of ``transformers`` that returns its loss, or the mean of its last hidden state."""

    def __init__(self, model: Any, *, labels: bool) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, given: Any) -> Any:
        if self.labels:
            return self.model(given, labels=given).loss
        return self.model(given).last_hidden_state.float().mean()


class ResidualBlock(nn.Module):
    """Group norm, SiLU and convolutions around a shift by the embedded time step."""

    def __init__(self, inner: int, outer: int, wide: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(wide, outer)
        self.norm2, self.conv2 = nn.GroupNorm(32, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Any, time: Any) -> Any:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.dropout(F.silu(self.norm2(y)), 0.1, self.training)) + self.skip(x)


class UNet(nn.Module):
    """One level of a latent diffusion model's U-Net, in the widths of Stable Diffusion 1.5."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(4, 320, 3, padding=1), ResidualBlock(320, 320, 1280)
        self.halve, self.middle = nn.Conv2d(320, 320, 3, stride=2, padding=1), ResidualBlock(320, 640, 1280)
        self.norm, self.qkv = nn.GroupNorm(32, 640), nn.Conv2d(640, 1920, 1)
        self.gate, self.back = nn.Linear(640, 5120), nn.Linear(2560, 640)
        self.up, self.leave = ResidualBlock(960, 320, 1280), nn.Conv2d(320, 4, 3, padding=1)

    def forward(self, x: Any, time: Any, noise: Any) -> Any:
        kept = self.down(self.enter(x + noise), time)
        y = self.middle(self.halve(kept), time)
        q, k, v = self.qkv(self.norm(y)).flatten(2).transpose(1, 2).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        value, gate = self.gate(mixed).chunk(2, -1)
        y = y + self.back(value * F.gelu(gate)).transpose(1, 2).reshape(y.shape)
        y = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), kept], 1)
        return F.mse_loss(self.leave(self.up(y, time)), noise)


class DiTBlock(nn.Module):
    """A block of a diffusion transformer: layer norms whose shift, scale and gate come from the time step."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.modulate = heads, nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, time: Any) -> Any:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulate(F.silu(time))[:, None].chunk(6, -1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(y)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.narrow(F.gelu(self.wide(y), approximate="tanh"))


class DiT(nn.Module):
    """Two blocks of DiT-XL/2."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DiTBlock(1152, 16) for _ in range(2))

    def forward(self, x: Any, time: Any) -> Any:
        for block in self.blocks:
            x = block(x, time)
        return x.float().square().mean()


def _text(name: str) -> Make:
    import transformers as t

    of, words, more = _TEXT[name]
    cls = getattr(t, of)
    config = cls.config_class(**more)
    _two_layers(config)
    if of == "MixtralForCausalLM":
        moe = importlib.import_module("transformers.models.mixtral.modeling_mixtral")
        moe.MixtralSparseMoeBlock.forward = every_expert

    def make(small: bool) -> tuple[Any, tuple[Any, ...]]:
        length = min(words, _LENGTH) if small else words
        return _Loss(cls(config), labels=True), (torch.zeros(1, length, dtype=torch.int64),)

    return make


def _images(name: str) -> Make:
    import transformers as t

    of, count, side, more = _IMAGES[name]
    cls = getattr(t, of)
    config = cls.config_class(**more)
    _two_layers(config)

    def make(small: bool) -> tuple[Any, tuple[Any, ...]]:
        return _Loss(cls(config), labels=False), (torch.zeros(1 if small else count, 3, side, side),)

    return make


def _two_layers(config: Any) -> None:
    for name in _LAYERS:
        if isinstance(getattr(config, name, None), int) and getattr(config, name) > 2:
            setattr(config, name, 2)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:2]


def _own(model: Callable[[], Any], *shapes: tuple[int, ...]) -> Make:
    """Return a factory; the first axis of each input is the batch, which is 1 in the small form."""
    return lambda small: (model(), tuple(torch.zeros(1 if small else shape[0], *shape[1:]) for shape in shapes))


def models() -> dict[str, tuple[str, Make]]:
    """Return, by name, the dtype of a model's parameters and its factory."""
    return {
        **{name: (BFLOAT16, _text(name)) for name in _TEXT},
        **{name: (FLOAT, _images(name)) for name in _IMAGES},
        "U-Net level of Stable Diffusion": (FLOAT, _own(UNet, (8, 4, 64, 64), (8, 1280), (8, 4, 64, 64))),
        "DiT-XL/2": (BFLOAT16, _own(DiT, (16, 256, 1152), (16, 1152))),
    }
