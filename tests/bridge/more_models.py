"""Models in addition to those of `tests.bridge.models`: other architectures, losses and layers, all tiny."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from tests.needs import needs

torch = needs("torch")
nn, F = torch.nn, torch.nn.functional

Make = Callable[[], tuple[Any, tuple[Any, ...]]]  # a module that returns a loss, and its arguments


class Of(nn.Module):
    """A module and a function of it."""

    def __init__(self, compute: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.inner, self.compute = nn.ModuleList(modules), compute

    def forward(self, *given: Any) -> Any:
        return self.compute(*self.inner, *given)


class ResidualConvolution(nn.Module):
    """Group norm, SiLU and convolutions around a shift by the embedded time step, as in a diffusion model's UNet."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(16, outer)
        self.norm2, self.conv2 = nn.GroupNorm(4, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1)

    def forward(self, x: Any, time: Any) -> Any:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.dropout(F.silu(self.norm2(y)), 0.1, self.training)) + self.skip(x)


def waves(steps: Any, width: int) -> Any:
    speed = torch.exp(-torch.arange(width // 2) * (9.2 / (width // 2)))
    angle = steps[:, None].float() * speed[None]
    return torch.cat([angle.sin(), angle.cos()], -1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 8, 3, padding=1), ResidualConvolution(8, 8)
        self.halve, self.middle = nn.Conv2d(8, 8, 3, stride=2, padding=1), ResidualConvolution(8, 16)
        self.norm, self.qkv = nn.GroupNorm(4, 16), nn.Conv2d(16, 48, 1)
        self.up, self.leave = ResidualConvolution(24, 8), nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Any, steps: Any, noise: Any) -> Any:
        time = waves(steps, 16)
        kept = self.down(self.enter(x + noise), time)
        y = self.middle(self.halve(kept), time)
        q, k, v = self.qkv(self.norm(y)).flatten(2).transpose(1, 2).chunk(3, -1)
        y = y + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(y.shape)
        y = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), kept], 1)
        return F.mse_loss(self.leave(self.up(y, time)), noise)


class GraphConvolution(nn.Module):
    """Messages along edges, summed at their target nodes, and attention among the edges of one target."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.score, self.leave = nn.Linear(8, 16), nn.Linear(32, 1), nn.Linear(16, 3)

    def forward(self, x: Any, edges: Any, target: Any) -> Any:
        source, end = edges
        y = self.turn(x)
        score = F.leaky_relu(self.score(torch.cat([y[source], y[end]], -1)), 0.2)[:, 0]
        most = torch.full((len(x),), float("-inf")).scatter_reduce(0, end, score, "amax")
        weight = torch.exp(score - most[end])
        total = torch.zeros(len(x)).scatter_add(0, end, weight)
        weight = weight / (total[end] + 1e-9)
        y = torch.zeros_like(y).index_add(0, end, y[source] * weight[:, None])
        degree = torch.zeros(len(x)).scatter_add(0, end, torch.ones(len(end)))
        return F.cross_entropy(self.leave(F.elu(y / degree.clamp(min=1)[:, None])), target, label_smoothing=0.1)


class ClickModel(nn.Module):
    """Bags of embeddings and dense features, multiplied pairwise (DLRM)."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList([
            nn.EmbeddingBag(20, 8, mode="sum"), nn.EmbeddingBag(20, 8, mode="mean"),
            nn.EmbeddingBag(20, 8, mode="max"),
        ])
        self.dense, self.top = nn.Sequential(nn.Linear(5, 8), nn.ReLU()), nn.Linear(8 + 6, 1)

    def forward(self, dense: Any, words: Any, target: Any) -> Any:
        parts = torch.stack([self.dense(dense), *(bag(words) for bag in self.bags)], 1)
        crossed = torch.bmm(parts, parts.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, -1)
        scores = self.top(torch.cat([parts[:, 0], crossed[:, rows, columns]], 1))[:, 0]
        return F.binary_cross_entropy_with_logits(scores, target)


class Experts(nn.Module):
    """The two best of four experts per token, each run over all tokens, with a load-balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.route = nn.RMSNorm(16), nn.Linear(16, 4, bias=False)
        self.inward, self.outward = nn.Parameter(torch.randn(4, 16, 24) / 4), nn.Parameter(torch.randn(4, 24, 16) / 5)

    def forward(self, x: Any) -> Any:
        y = self.norm(x).reshape(-1, 16)
        shares = F.softmax(self.route(y), -1)
        best, chosen = shares.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        weight = torch.zeros_like(shares).scatter(1, chosen, best)
        hidden = F.silu(torch.einsum("tc,ech->eth", y, self.inward))
        mixed = torch.einsum("eth,ehc,te->tc", hidden, self.outward, weight)
        load = F.one_hot(chosen, 4).float().mean((0, 1))
        return (x + mixed.view_as(x)).square().mean() + 0.01 * 4 * (load * shares.mean(0)).sum()


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: Any) -> Any:
        mean, spread = self.enter(x).chunk(2, -1)
        drawn = mean + torch.randn_like(spread) * torch.exp(0.5 * spread)
        found = torch.sigmoid(self.leave(drawn))
        apart = -0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        return F.binary_cross_entropy(found, torch.sigmoid(x), reduction="sum") + apart


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module], **more: Any) -> None:
        super().__init__()
        self.layers, self.leave = cell(6, 8, 2, batch_first=True, **more), nn.LazyLinear(3)
        self.leave(self.layers(torch.zeros(1, 2, 6))[0])

    def forward(self, x: Any, target: Any) -> Any:
        y, _ = self.layers(x)
        return F.cross_entropy(self.leave(y).flatten(0, 1), target.flatten(), ignore_index=1)


def _contrastive(one: nn.Module, other: nn.Module, scale: Any, x: Any, y: Any) -> Any:
    a, b = F.normalize(one(x), dim=-1), F.normalize(other(y), dim=-1)
    scores = scale.weight.exp().clamp(max=100) * a @ b.t()
    which = torch.arange(len(x))
    return (F.cross_entropy(scores, which) + F.cross_entropy(scores.t(), which)) / 2


def _focal(layer: nn.Module, x: Any, target: Any) -> Any:
    each = F.cross_entropy(layer(x), target, reduction="none", weight=torch.tensor([1.0, 2.0, 0.5]))
    sure = torch.exp(-each)
    boxes, found = x[:, :4].sigmoid(), x[:, 4:8].sigmoid()
    near = torch.minimum(boxes[:, 2:], found[:, 2:]) - torch.maximum(boxes[:, :2], found[:, :2])
    common = near.clamp(min=0).prod(-1)
    return ((1 - sure) ** 2 * each).mean() + F.smooth_l1_loss(boxes, found) - common.mean()


def _pooled(net: nn.Module, x: Any, target: Any) -> Any:
    return F.nll_loss(F.log_softmax(net(x), -1), target)


def _ctc(layer: nn.Module, x: Any, target: Any) -> Any:
    scores = F.log_softmax(layer(x), -1).transpose(0, 1)
    return F.ctc_loss(scores, target, torch.full((len(x),), 10), torch.full((len(x),), 3))


def _physics(net: nn.Module, x: Any) -> Any:
    """The residual of a solution, with a derivative by an input inside the loss."""
    value, slope = torch.func.jvp(net, (x,), (torch.ones_like(x),))
    return (slope - torch.cos(x)).square().mean() + value.square().mean()


def _policy(actor: nn.Module, critic: nn.Module, seen: Any, actions: Any, old: Any, rewards: Any) -> Any:
    """The clipped objective of PPO."""
    chosen = torch.distributions.Categorical(logits=actor(seen))
    ratio = torch.exp(chosen.log_prob(actions) - old)
    value = critic(seen)[:, 0]
    gain = rewards - value.detach()
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    return -clipped + 0.5 * F.mse_loss(value, rewards) - 0.01 * chosen.entropy().mean()


def _preference(net: nn.Module, chosen: Any, refused: Any) -> Any:
    """The loss of DPO, over summed log probabilities of tokens."""
    def told(words: Any) -> Any:
        scores = F.log_softmax(net(words[:, :-1]), -1)
        return scores.gather(-1, words[:, 1:, None])[..., 0].masked_fill(words[:, 1:] == 0, 0).sum(-1)

    margin = told(chosen) - told(refused)
    return -F.logsigmoid(0.1 * margin).mean()


def _linear_attention(qkv: nn.Module, x: Any) -> Any:
    q, k, v = qkv(x).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    states = torch.cumsum(k[..., None] * v[..., None, :], 1)
    found = torch.einsum("btc,btcd->btd", q, states) / (torch.einsum("btc,btc->bt", q, k.cumsum(1))[..., None] + 1e-6)
    return found.square().mean()


def _quantized(layer: nn.Module, x: Any) -> Any:
    """Weights rounded to int8 in forward, with a gradient that passes through."""
    scale = layer.weight.abs().amax(1, keepdim=True) / 127
    weight = layer.weight + ((layer.weight / scale).round().clamp(-128, 127) * scale - layer.weight).detach()
    return F.linear(x, weight, layer.bias).tanh().sum()


def _codebook(enter: nn.Module, codes: nn.Module, leave: nn.Module, x: Any) -> Any:
    """A vector-quantized autoencoder."""
    y = enter(x)
    near = torch.cdist(y, codes.weight).argmin(-1)
    code = codes(near)
    passed = y + (code - y).detach()
    return F.mse_loss(leave(passed), x) + F.mse_loss(code, y.detach()) + 0.25 * F.mse_loss(y, code.detach())


def _convolutions(*, norm: Callable[[int], nn.Module], pool: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm(8), nn.ReLU(), pool, nn.Conv2d(8, 8, 3, padding=1, groups=8), norm(8),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 3),
    )


def _classes(rows: int, count: int) -> Any:
    return torch.arange(rows) % count


def _words(*shape: int) -> Any:
    return torch.randint(0, 20, shape)


def _decoded(layer: nn.Module, x: Any, y: Any) -> Any:
    return layer(x, y, tgt_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1])).square().mean()


def _softened(first: nn.Module, second: nn.Module, x: Any) -> Any:
    return F.softplus(second(F.mish(first(x)))).mean()


def _many_losses(net: nn.Module, x: Any, y: Any, z: Any) -> Any:
    a, b, c = net(x), net(y), net(z)
    near = F.triplet_margin_loss(a, b, c) + F.cosine_embedding_loss(a, b, torch.tensor([1.0, -1, 1]))
    return near + F.kl_div(F.log_softmax(a, -1), F.softmax(c, -1), reduction="batchmean") + F.huber_loss(a, y[:, :5])


def _squared(net: nn.Module, x: Any) -> Any:
    return net(x).square().mean()


def _image_model(norm: Callable[[int], nn.Module], pool: nn.Module, *, last: bool = False) -> tuple[Any, Any]:
    order = torch.channels_last if last else torch.contiguous_format
    net = Of(_pooled, _convolutions(norm=norm, pool=pool)).to(memory_format=order)
    return net, (torch.rand(2, 3, 8, 8).to(memory_format=order), _classes(2, 3))


def _sequence(cell: type[nn.Module], **more: Any) -> tuple[Any, Any]:
    return Recurrent(cell, **more), (torch.randn(2, 5, 6), _classes(10, 3).view(2, 5))


def _agent() -> tuple[Any, Any]:
    actor = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return Of(_policy, actor, nn.Linear(4, 1)), (torch.randn(6, 4), _classes(6, 3), torch.randn(6) - 1, torch.randn(6))


def _parametrized() -> tuple[Any, Any]:
    made = nn.utils.parametrizations
    first, second = made.weight_norm(nn.Linear(6, 8)), made.spectral_norm(nn.Linear(8, 5))
    return Of(_softened, first, second), (torch.randn(4, 6),)


def _resized() -> tuple[Any, Any]:
    return Of(_squared, nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same", padding_mode="reflect"), nn.PixelShuffle(2),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.ZeroPad2d(1), nn.Conv2d(2, 4, 2, stride=2), nn.CELU(),
        nn.ConvTranspose2d(4, 4, 2, 2), nn.Softmax2d(), nn.ChannelShuffle(2), nn.Dropout2d(0.2),
        nn.AdaptiveMaxPool2d(3),
    )), (torch.randn(2, 3, 4, 4),)


OWN: dict[str, Make] = {
    "UNet with time steps": lambda: (
        UNet(), (torch.randn(2, 3, 8, 8), torch.tensor([3, 70]), torch.randn(2, 3, 8, 8))),
    "graph attention": lambda: (GraphConvolution(), (torch.randn(6, 8), torch.randint(0, 6, (2, 14)), _classes(6, 3))),
    "LSTM": lambda: _sequence(nn.LSTM, dropout=0.1),
    "GRU, both ways": lambda: _sequence(nn.GRU, bidirectional=True),
    "DLRM": lambda: (ClickModel(), (torch.randn(4, 5), _words(4, 3), torch.tensor([0.0, 1, 1, 0]))),
    "experts by top-k": lambda: (Experts(), (torch.randn(2, 5, 16),)),
    "variational autoencoder": lambda: (Autoencoder(), (torch.randn(4, 12),)),
    "contrastive": lambda: (
        Of(_contrastive, nn.Linear(6, 5), nn.Linear(7, 5), nn.Linear(1, 1)), (torch.randn(4, 6), torch.randn(4, 7))),
    "focal": lambda: (Of(_focal, nn.Linear(8, 3)), (torch.randn(6, 8), _classes(6, 3))),
    "conv, group norm, max pool": lambda: _image_model(lambda n: nn.GroupNorm(2, n), nn.MaxPool2d(2)),
    "conv, batch norm, average pool": lambda: _image_model(nn.BatchNorm2d, nn.AvgPool2d(3, 2, 1)),
    "conv, instance norm, power pool": lambda: _image_model(
        lambda n: nn.InstanceNorm2d(n, affine=True), nn.LPPool2d(2, 2)),
    "conv, channels last": lambda: _image_model(nn.BatchNorm2d, nn.MaxPool2d(3, 2, 1), last=True),
    "CTC": lambda: (Of(_ctc, nn.Linear(6, 5)), (torch.randn(2, 10, 6), torch.randint(1, 5, (2, 3)))),
    "derivative in the loss": lambda: (
        Of(_physics, nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))), (torch.randn(6, 1),)),
    "PPO": _agent,
    "DPO": lambda: (
        Of(_preference, nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))), (_words(2, 6), _words(2, 6))),
    "linear attention": lambda: (Of(_linear_attention, nn.Linear(8, 24)), (torch.randn(2, 6, 8),)),
    "weights rounded to int8": lambda: (Of(_quantized, nn.Linear(8, 6)), (torch.randn(4, 8),)),
    "codebook": lambda: (Of(_codebook, nn.Linear(8, 4), nn.Embedding(6, 4), nn.Linear(4, 8)), (torch.randn(5, 8),)),
    "decoder layer": lambda: (
        Of(_decoded, nn.TransformerDecoderLayer(16, 2, 24, 0.1, batch_first=True)),
        (torch.randn(2, 4, 16), torch.randn(2, 5, 16))),
    "weight norm and spectral norm": _parametrized,
    "many losses": lambda: (
        Of(_many_losses, nn.Sequential(nn.Linear(6, 5), nn.PReLU(), nn.SELU())),
        (torch.randn(3, 6), torch.randn(3, 6), torch.randn(3, 6))),
    "upsampling and shuffles": _resized,
}  # fmt: skip


class Loss(nn.Module):
    """A model of ``transformers`` with further arguments."""

    def __init__(self, model: Any, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, *given: Any) -> Any:
        return self.compute(self.model, *given)


def _labelled(model: Any, words: Any) -> Any:
    return model(input_ids=words, labels=words).loss


def _images(model: Any, images: Any) -> Any:
    return torch.sigmoid(model(images).last_hidden_state).mean()


def of_transformers() -> Iterator[tuple[str, Make]]:
    """More models of ``transformers``, from configurations alone."""
    if importlib.util.find_spec("transformers") is None:
        return
    import transformers as t

    base = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    wide = {**base, "intermediate_size": 64, "max_position_embeddings": 64}
    grouped = {**wide, "num_key_value_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}

    def text(name: str, **config: Any) -> Make:
        kind = getattr(t, f"{name}ForCausalLM", None) or getattr(t, f"{name}ForMaskedLM", None)
        kind = kind or getattr(t, f"{name}ForConditionalGeneration")
        made = getattr(t, f"{name}Config")(**{**ends, **config})
        return lambda: (Loss(kind(made), _labelled), (torch.randint(2, 50, (2, 12)),))

    def images(name: str, size: int, **config: Any) -> Make:
        made = getattr(t, f"{name}Config")(**config)
        return lambda: (Loss(getattr(t, f"{name}Model")(made), _images), (torch.randn(2, 3, size, size),))

    yield "DistilBERT", text("DistilBert", vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    yield "RoBERTa", text("Roberta", **wide)
    yield "OPT", text("OPT", **base, ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32)
    yield "GPT-NeoX", text("GPTNeoX", **wide)
    yield "Falcon", text("Falcon", **base)
    yield "Phi", text("Phi", **wide)
    yield "Mistral", text("Mistral", **grouped, sliding_window=6)
    yield "DeBERTa", text("DebertaV2", **wide, relative_attention=True, pos_att_type=["p2c", "c2p"])
    yield "BLOOM", text("Bloom", vocab_size=50, hidden_size=32, n_layer=2, n_head=4)
    yield "ELECTRA", text("Electra", **wide, embedding_size=16)
    yield "ALBERT", text("Albert", **wide, embedding_size=16)
    yield "LongT5", text("LongT5", vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                         local_radius=3, decoder_start_token_id=0)
    yield "BART", text("Bart", vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                       decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
                       decoder_start_token_id=0, forced_eos_token_id=None)
    yield "Gemma 2", text("Gemma2", **grouped, head_dim=8, sliding_window=6)
    yield "Phi-3", text("Phi3", **grouped)
    yield "Cohere", text("Cohere", **grouped)
    yield "OLMo 2", text("Olmo2", **grouped)
    yield "StableLM", text("StableLm", **grouped)
    yield "DeepSeek", text("DeepseekV3", **wide, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2,
                           n_group=1, topk_group=1, moe_intermediate_size=16, q_lora_rank=16, kv_lora_rank=16,
                           qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1)
    yield "RWKV", text("Rwkv", vocab_size=50, hidden_size=32, num_hidden_layers=2, context_length=64)
    yield "FNet", text("FNet", vocab_size=50, hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    yield "Swin", images("Swin", 16, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2],
                         window_size=4)
    yield "ConvNeXt", images("ConvNext", 32, hidden_sizes=[8, 8], depths=[1, 1], num_stages=2)
    yield "SegFormer", images("Segformer", 32, hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2,
                              sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2],
                              mlp_ratios=[2, 2])
    yield "DINOv2", images("Dinov2", 28, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, image_size=28)
    yield "Whisper", lambda: (
        Loss(t.WhisperForConditionalGeneration(t.WhisperConfig(
            vocab_size=50, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=12,
            max_target_positions=16, decoder_start_token_id=2, **ends, suppress_tokens=None,
            begin_suppress_tokens=None)),
             lambda model, sound, words: model(input_features=sound, labels=words).loss),
        (torch.randn(2, 8, 24), torch.randint(2, 50, (2, 6))))
    yield "CLIP", lambda: (
        Loss(t.CLIPModel(t.CLIPConfig(
            text_config={**wide, **ends, "projection_dim": 16},
            vision_config={"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
                           "image_size": 16, "patch_size": 4, "projection_dim": 16}, projection_dim=16)),
             lambda model, words, images: model(input_ids=words, pixel_values=images, return_loss=True).loss),
        (torch.randint(2, 50, (2, 6)), torch.randn(2, 3, 16, 16)))
    yield "Wav2Vec2", lambda: (
        Loss(t.Wav2Vec2Model(t.Wav2Vec2Config(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            conv_dim=(8, 8), conv_stride=(4, 2), conv_kernel=(8, 4), num_feat_extract_layers=2,
            num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.0, layerdrop=0.0)), _images),
        (torch.randn(2, 200),))
