"""``python -m tests.bridge.large_models [name ...]`` captures models of ``transformers`` at real sizes: a table.

Everything is on the device ``"meta"``: nothing runs, and no weights are read or allocated. Times are processor seconds
of all threads together, which a busy machine hardly affects.
"""

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

from tests.needs import needs

torch = needs("torch")

LENGTH = 2048


class Loss(torch.nn.Module):
    """A model that returns its loss, or the mean of its last hidden state."""

    def __init__(self, model: Any, *, labels: bool = True, **more: Any):
        super().__init__()
        self.model, self.labels, self.more = model, labels, more

    def forward(self, given):
        if not self.labels:
            return self.model(given).last_hidden_state.mean()
        return self.model(input_ids=given, labels=given, **self.more).loss


def every_expert(block: Any, given: Any) -> tuple[Any, Any]:
    """Return the results of Mixtral's experts as in ``transformers``, each computed for all tokens.

    The tokens of an expert depend on values, which meta tensors do not have.
    """
    words = given.reshape(-1, given.shape[-1])
    logits = block.gate(words)
    shares, chosen = torch.topk(torch.softmax(logits.float(), -1), block.top_k, dim=-1)
    shares = (shares / shares.sum(-1, keepdim=True)).to(words.dtype)
    total = torch.zeros_like(words)
    for number, expert in enumerate(block.experts):
        total = total + expert(words) * (shares * (chosen == number)).sum(-1, keepdim=True)
    return total.reshape(given.shape), logits


def models() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Return, by name, a factory of a model and its input on the device ``"meta"``."""
    import transformers as t

    def text(model: Any, config: Any, length: int = LENGTH, **more: Any) -> Callable[[], tuple[Any, Any]]:
        return lambda: (Loss(model(config), **more), torch.zeros(1, length, dtype=torch.int64))

    llama = t.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0,
    )
    gpt = t.GPT2Config(n_embd=1600, n_layer=48, n_head=25)
    mixtral = t.MixtralConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
        num_local_experts=8, num_experts_per_tok=2, vocab_size=32000,
    )
    gemma = t.GemmaConfig(
        hidden_size=3072, intermediate_size=24576, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=16,
        head_dim=256, vocab_size=256000,
    )
    gemma2 = t.Gemma2Config(
        hidden_size=3584, intermediate_size=14336, num_hidden_layers=42, num_attention_heads=16, num_key_value_heads=8,
        head_dim=256, vocab_size=256000,
    )
    qwen = t.Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064,
    )
    bert = t.BertConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    vit = t.ViTConfig(
        hidden_size=1280, intermediate_size=5120, num_hidden_layers=32, num_attention_heads=16, image_size=224,
        patch_size=14,
    )
    t5 = t.T5Config(
        d_model=1024, d_kv=128, d_ff=16384, num_layers=24, num_decoder_layers=24, num_heads=32,
        decoder_start_token_id=0,
    )
    mamba = t.MambaConfig(hidden_size=2560, num_hidden_layers=64, state_size=16, use_mambapy=False)
    moe = importlib.import_module("transformers.models.mixtral.modeling_mixtral")
    moe.MixtralSparseMoeBlock.forward = every_expert
    return {
        "Llama 8B": text(t.LlamaForCausalLM, llama, 4096),
        "GPT-2 XL": text(t.GPT2LMHeadModel, gpt, 1024),
        "Mixtral 8x7B": text(t.MixtralForCausalLM, mixtral),
        "Gemma 7B": text(t.GemmaForCausalLM, gemma),
        "Gemma-2 9B": text(t.Gemma2ForCausalLM, gemma2),
        "Qwen2 7B": text(t.Qwen2ForCausalLM, qwen),
        "BERT-large": text(t.BertForMaskedLM, bert, 512),
        "ViT-H": lambda: (Loss(t.ViTModel(vit), labels=False), torch.zeros(8, 3, 224, 224)),
        "T5-3B": text(t.T5ForConditionalGeneration, t5, 512),
        "Mamba 2.8B": text(t.MambaForCausalLM, mamba, 4),
    }


def row(make: Callable[[], tuple[Any, Any]], *, backward: bool) -> dict[str, Any]:
    """Return one line of the table, and the captured graphs."""
    import fuser_lab as fl

    torch._dynamo.reset()
    with torch.device("meta"):
        model, given = make()
    began = time.process_time()
    found = fl.from_torch(model, given, backward=backward)
    captured = time.process_time()
    different = {region.signature: region for region in found.regions}
    for region in different.values():
        region.plan.certificate()
    certified = time.process_time()
    return {
        "calls": sum(graph.nodes for graph in found.graphs), "regions": len(found.regions),
        "different": len(different), "crossing": found.costs().bytes_crossing, "share": found.shares.fused,
        "capture": captured - began, "certificates": certified - captured, "found": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of models; all by default")
    parser.add_argument("--forward", action="store_true", help="without the backward graph")
    parser.add_argument("--show", action="store_true", help="list the content of each model, and what torch runs")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| model | calls | regions (distinct) | in regions | crossing | capture s | certificates s |")
    print("|---" * 7 + "|")
    for name, make in models().items():
        if chosen.names and name not in chosen.names:
            continue
        try:
            one = row(make, backward=not chosen.forward)
        except Exception as error:  # noqa: BLE001 - what torch cannot trace is a row that says so
            print(f"| {name} | {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
            continue
        print(
            f"| {name} | {one['calls']:,} | {one['regions']} ({one['different']}) | {one['share']:.1%} "
            f"| {one['crossing'] / 1e9:,.1f} GB | {one['capture']:.0f} | {one['certificates']:.0f} |", flush=True,
        )
        if chosen.show:
            print(one["found"])


if __name__ == "__main__":
    main()
