"""Further users: encoders, state spaces, quantised modules, sparse and packed inputs, None, generators, coroutines."""

import math
from collections import OrderedDict

from tests.bridge.more_users import USERS
from tests.bridge.users import User, user
from tests.needs import needs

__all__ = ["USERS"]

torch = needs("torch")
F = torch.nn.functional
nn = torch.nn


@user
def t5_encoder_of_transformers():
    transformers = needs("transformers")
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return transformers.T5EncoderModel(config).eval(), torch.randint(0, 64, (2, 12))


@user
def t5_with_a_decoder_by_keywords():
    transformers = needs("transformers")
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).train()
    tokens = torch.randint(1, 64, (2, 12))
    return User(model=model, inputs=(), keywords={"input_ids": tokens, "labels": tokens, "attention_mask": tokens > 5})


@user
def whisper_encoder_of_transformers():
    transformers = needs("transformers")
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=16,
        max_source_positions=20, vocab_size=64, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )
    return transformers.WhisperModel(config).eval().encoder, torch.randn(1, 16, 40)


@user
def mamba_of_transformers():
    transformers = needs("transformers")
    config = transformers.MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=1)
    return transformers.MambaModel(config).eval(), torch.randint(0, 64, (1, 8))


@user
def mixtral_experts_of_transformers():
    transformers = needs("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, use_cache=False,
    )
    return transformers.MixtralForCausalLM(config).eval(), torch.randint(0, 64, (1, 8))


@user
def weight_only_int8_linear():
    class Int8Linear(nn.Module):
        def __init__(self, rows, columns):
            super().__init__()
            weight = torch.randn(columns, rows)
            scale = weight.abs().amax(1, keepdim=True) / 127
            self.register_buffer("scale", scale)
            self.register_buffer("weight", (weight / scale).round().to(torch.int8))

        def forward(self, x):
            return F.linear(x, self.weight.to(x.dtype) * self.scale)

    return nn.Sequential(Int8Linear(16, 32), nn.GELU(), Int8Linear(32, 16)), torch.randn(4, 16)


@user
def statically_quantised_convolution():
    quantization = torch.ao.quantization
    model = nn.Sequential(quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), quantization.DeQuantStub()).eval()
    model.qconfig = quantization.default_qconfig
    prepared = quantization.prepare(model)
    prepared(torch.randn(1, 3, 8, 8))
    return quantization.convert(prepared), torch.randn(1, 3, 8, 8)


@user
def packed_sequence_through_a_gru():
    net = nn.GRU(8, 16, batch_first=True)

    def encode(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = net(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return padded.mean(1), last

    return encode, torch.randn(3, 6, 8), torch.tensor([6, 2, 4])


@user
def masked_language_model_loss_with_none_among_the_outputs():
    def loss(logits, labels, weights=None, *, smoothing: float = 0.1, reduce=True):
        mask = labels != -100
        terms = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing, reduction="none",
                                ignore_index=-100)
        total = terms.sum() / mask.sum().clamp(min=1) if reduce else None
        return {"loss": total, "terms": None if reduce else terms, "weights": weights, "count": int(mask.sum())}

    labels = torch.randint(0, 11, (2, 7))
    labels[0, :3] = -100
    return User(model=loss, inputs=(torch.randn(2, 7, 11), labels), keywords={"smoothing": 0.0})


@user
def adafactor_with_state_in_a_dict():
    def update(params, grads, state, lr=1e-2, decay=0.8):
        for name, grad in grads.items():
            square = grad.square() + 1e-30
            state[name]["row"].lerp_(square.mean(-1), 1 - decay)
            state[name]["column"].lerp_(square.mean(-2), 1 - decay)
            row, column = state[name]["row"], state[name]["column"]
            factor = (row / row.mean()).rsqrt()[..., None] * column.rsqrt()[None]
            params[name].sub_(lr * factor * grad)
        return params

    shape = {"a": (8, 4), "b": (3, 5)}
    params = {name: torch.randn(*each) for name, each in shape.items()}
    grads = {name: torch.randn(*each) for name, each in shape.items()}
    state = {name: {"row": torch.ones(a), "column": torch.ones(b)} for name, (a, b) in shape.items()}
    return update, params, grads, state


@user
def message_passing_with_sparse_adjacency():
    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            index = torch.randint(0, 6, (2, 12))
            self.adjacency = torch.sparse_coo_tensor(index, torch.ones(12), (6, 6)).coalesce()

        def forward(self, h):
            return F.elu(torch.sparse.mm(self.adjacency, self.linear(h)))

    return Convolution(), torch.randn(6, 8)


@user
def euler_sampler_that_calls_a_model_in_a_loop():
    net = nn.Sequential(OrderedDict(a=nn.Linear(9, 32), b=nn.SiLU(), c=nn.Linear(32, 8)))

    @torch.no_grad()
    def sample(x, sigmas, guidance=2.0, callback=None):
        for i in range(len(sigmas) - 1):
            sigma = sigmas[i].expand(x.shape[0], 1)
            free, bound = net(torch.cat([x, sigma.log() / 4], 1)), net(torch.cat([x, sigma], 1))
            denoised = free + guidance * (bound - free)
            x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
            if callback is not None:
                callback(i, x)
        return x

    return User(model=sample, inputs=(torch.randn(2, 8), torch.linspace(10.0, 0.1, 4)), keywords={"guidance": 1.5})


@user
def boxes_by_a_threshold_of_their_scores():
    def select(boxes, scores, threshold: float = 0.5, most: int = 5):
        keep = scores > threshold
        boxes, scores = boxes[keep], scores[keep]
        order = scores.argsort(descending=True)[:most]
        area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)
        return boxes[order], scores[order], (area[order] / area.sum()).tolist()

    return select, torch.rand(20, 4), torch.rand(20)


@user
def short_time_fourier_transform_and_back():
    def denoise(wave, window):
        spectrum = torch.stft(wave, 32, 8, window=window, return_complex=True)
        magnitude, phase = spectrum.abs(), spectrum.angle()
        magnitude = F.relu(magnitude - magnitude.median(dim=-1, keepdim=True).values)
        return torch.istft(torch.polar(magnitude, phase), 32, 8, window=window, length=wave.shape[-1])

    return denoise, torch.randn(2, 256), torch.hann_window(32)


@user
def segments_of_a_ragged_batch():
    def pool(values, offsets, names=("first", "second")):
        lengths = offsets.diff()
        owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        sums = torch.zeros(len(lengths), values.shape[1]).scatter_add_(0, owner[:, None].expand_as(values), values)
        return dict(zip(names, (sums, sums / lengths[:, None].clamp(min=1)), strict=True))

    return pool, torch.randn(10, 4), torch.tensor([0, 3, 3, 10])


@user
def normalising_flow_with_its_determinant():
    class Coupling(nn.Module):
        def __init__(self, width=6):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(width // 2, 16), nn.Tanh(), nn.Linear(16, width))
            self.register_buffer("mean", torch.zeros(width))
            self.momentum = 0.1

        def forward(self, x):
            if self.training:
                self.mean.mul_(1 - self.momentum).add_(self.momentum * x.detach().mean(0))
            a, b = x.chunk(2, -1)
            shift, scale = self.net(a).chunk(2, -1)
            scale = scale.tanh()
            z = torch.cat([a, b * scale.exp() + shift], -1)
            prior = -0.5 * (z.square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
            return z, prior + scale.sum(-1)

    return Coupling().train(), torch.randn(5, 6)


@user
def a_generator_of_batches():
    def batches(x):
        for part in x.split(2):
            yield part.softmax(-1)

    return batches, torch.randn(4, 8)


@user
def a_coroutine():
    async def serve(x):
        return x.relu().sum()

    return serve, torch.randn(4)
