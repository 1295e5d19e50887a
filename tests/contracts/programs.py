"""Ten programs as source text, regressions planted in them, and harmless edits of their source."""

import ast
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function ``step`` as source, its inputs as texts of ``--inputs`` with B for the batch, and who compiles it."""

    name: str
    source: str
    inputs: tuple[str, ...]
    compiler: str = "inductor"
    batch: int = 64
    backward: bool = False
    device: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # entries of torch._inductor.config
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A regression: a change of a program's text or circumstances, and a text that names its culprit."""

    program: str
    name: str
    culprit: str
    old: str = ""
    new: str = ""
    inputs: tuple[str, ...] = ()
    batch: int = 0
    device: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def of(self, program: Program) -> Program:
        """The program with the regression."""
        assert self.old in program.source
        return replace(
            program, source=program.source.replace(self.old, self.new, 1) if self.old else program.source,
            inputs=self.inputs or program.inputs, batch=self.batch or program.batch, config=self.config,
            options={**program.options, **self.options}, device=self.device or program.device,
        )


PROGRAMS = {program.name: program for program in (
    Program(name="norm", inputs=("f32[B,256]", "f32[256]"), source="""\
def step(x, w):
    m = x.mean(-1, keepdim=True)
    d = x - m
    v = (d * d).mean(-1, keepdim=True)
    r = torch.rsqrt(v + 1e-5)
    y = d * r
    return y * w
"""),
    Program(name="softmax", inputs=("f32[B,128]", "f32[B,128]"), source="""\
def step(x, mask):
    s = x * 0.125
    t = s + mask
    p = torch.softmax(t, -1)
    q = p * 2.0
    return q
"""),
    Program(name="block", inputs=("f32[B,64]",), source="""\
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up = torch.nn.Linear(64, 128)
        self.down = torch.nn.Linear(128, 64)

    def forward(self, x):
        h = self.norm(x)
        u = self.up(h)
        g = F.gelu(u)
        y = self.down(g)
        return x + y


step = Block()
"""),
    Program(name="gated", inputs=("f32[B,256]", "f32[B,256]", "f32[256]"), source="""\
def step(a, b, w):
    g = F.silu(a)
    u = b * w
    h = g * u
    n = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6)
    return n, h
"""),
    Program(name="adam", inputs=("f32[B,128]", "f32[B,128]", "f32[B,128]", "f32[B,128]"), source="""\
def step(p, g, m, v):
    a = 0.9 * m + 0.1 * g
    s = g * g
    b = 0.99 * v + 0.01 * s
    d = b.sqrt() + 1e-8
    q = p - 0.001 * a / d
    return q, a, b
"""),
    Program(name="statistics", inputs=("f32[B,128]",), source="""\
def step(x):
    e = x.exp()
    a = e.sum(-1)
    b = (e * e).sum(-1)
    c = e.amax(-1)
    return a, b, c
"""),
    Program(name="loss", inputs=("f32[B,32]", "f32[B,32]"), backward=True, source="""\
scale = torch.nn.Parameter(torch.ones(32))
shift = torch.nn.Parameter(torch.ones(32))


def step(x, t):
    h = torch.tanh(x * scale)
    p = F.log_softmax(h + shift, -1)
    loss = -(p * t).sum(-1)
    return loss.mean()
"""),
    Program(name="rotation", compiler="nvfuser", inputs=("f32[B,16,64]", "f32[16,64]", "f32[16,64]"), source="""\
def step(x, c, s):
    a, b = x.chunk(2, -1)
    n = -b
    r = torch.cat([n, a], -1)
    u = x * c
    v = r * s
    return u + v
"""),
    Program(name="rms", compiler="nvfuser", inputs=("bf16[B,1024]", "bf16[B,1024]", "bf16[1024]"), source="""\
def step(x, residual, w):
    h = x + residual
    f = h.float()
    v = f.pow(2).mean(-1, keepdim=True)
    y = f * torch.rsqrt(v + 1e-6)
    z = y.to(torch.bfloat16) * w
    return z, h
"""),
    Program(name="attention", compiler="fuser_lab", inputs=("f32[B,8,128]", "f32[8,128]"), source="""\
def step(x, bias):
    s = x * 0.3
    t = s + bias
    m = t.amax(-1, keepdim=True)
    e = torch.exp(t - m)
    d = e.sum(-1, keepdim=True)
    p = e / d
    return p
"""),
)}


PLANTED: tuple[Planted, ...] = (
    Planted(program="norm", name="a print breaks the graph", old="    r = torch", new="    print(v)\n    r = torch",
            culprit="print"),
    Planted(program="norm", name="a transposed copy", old="return y * w", new="return (y * w).t().contiguous()",
            culprit="clone"),
    Planted(program="norm", name="a result in float64", old="return y * w", new="return (y * w).double()",
            culprit="convert_element_type"),
    Planted(program="softmax", name="the sum of columns", old="    q = p * 2.0", new="    q = p * p.sum(0)",
            culprit="sum"),
    Planted(program="norm", name="another layout", inputs=("f32[256,B].t", "f32[256]"), culprit="input 0"),
    Planted(program="softmax", name="mask in float64", inputs=("f32[B,128]", "f64[B,128]"), culprit="input 1"),
    Planted(program="block", name="an op between product and gelu", old="g = F.gelu(u)",
            new="g = F.gelu(u / u.norm(dim=-1, keepdim=True).sum())", culprit="norm"),
    Planted(program="block", name="a second product", old="g = F.gelu(u)", new="g = F.gelu(u) @ torch.eye(128)",
            culprit="mm"),
    Planted(program="block", name="item breaks the graph", old="return x + y", new="return x + y * float(y.amax())",
            culprit="item"),
    Planted(program="gated", name="reordered sum", old="(h * h).mean(-1, keepdim=True)",
            new="(h * h).mean(0, keepdim=True)", culprit="mean"),
    Planted(program="gated", name="fusion is limited", config={"max_fusion_size": 1}, culprit="max_fusion_size"),
    Planted(program="gated", name="sort between", old="h = g * u", new="h = g * u.sort(-1).values", culprit="sort"),
    Planted(program="adam", name="decay with a norm", old="q = p - 0.001", new="q = p - p.norm() * 0.001",
            culprit="norm"),
    Planted(program="adam", name="gradient in float64", inputs=("f32[B,128]", "f64[B,128]", "f32[B,128]", "f32[B,128]"),
            culprit="input 1"),
    Planted(program="adam", name="a transposed state", old="return q, a, b", new="return q, a, b.t().contiguous()",
            culprit="clone"),
    Planted(program="statistics", name="one sum over columns", old="b = (e * e).sum(-1)", new="b = (e * e).sum(0)",
            culprit="sum"),
    Planted(program="statistics", name="a sum of the normalized", old="c = e.amax(-1)",
            new="c = (e / a.sum()).amax(-1)", culprit="sum"),
    Planted(program="statistics", name="a cumulative sum", old="c = e.amax(-1)", new="c = e.cumsum(0).amax(-1)",
            culprit="cumsum"),
    Planted(program="loss", name="a detach cuts a gradient", old="softmax(h + shift", new="softmax(h.detach() + shift",
            culprit="tanh_backward"),
    Planted(program="loss", name="another reduction", old="return loss.mean()", new="return loss.mean() + x.std()",
            culprit="var"),
    Planted(program="loss", name="a print in the loss", old="    loss = -", new="    print(p)\n    loss = -",
            culprit="print"),
    Planted(program="rotation", name="a sum over the batch", old="return u + v", new="return u + v - v.sum(0)",
            culprit="sum"),
    Planted(program="rotation", name="a product", old="    u = x * c", new="    u = x @ torch.eye(64)", culprit="mm"),
    Planted(program="rotation", name="a cumulative sum", old="    n = -b", new="    n = (-b).cumsum(-1)",
            culprit="cumsum"),
    Planted(program="rms", name="a sum over the batch", old="z = y.to", new="z = (y / y.sum(0)).to", culprit="sum"),
    Planted(program="rms", name="rows past the threshold", batch=2, culprit="input 0",
            inputs=("bf16[B,1000000]", "bf16[B,1000000]", "bf16[1000000]")),
    Planted(program="rms", name="inputs in float32", inputs=("f32[B,1024]", "f32[B,1024]", "bf16[1024]"),
            culprit="input 0"),
    Planted(program="attention", name="unfused", options={"strategy": "unfused"}, culprit="strategy"),
    Planted(program="attention", name="sum of the other axis", old="d = e.sum(-1, keepdim=True)",
            new="d = e.sum(1, keepdim=True)", culprit="sum"),
    Planted(program="attention", name="rows past the threshold", inputs=("f32[B,8,600000]", "f32[8,600000]"), batch=2,
            culprit="input 0"),
)


# Harmless edits

def harmless(program: Program, seed: int) -> Program:
    """The program with other names, another order of independent lines, shifted lines, and another batch or device."""
    draw = random.Random(f"{program.name} {seed}")
    tree = ast.parse(program.source)
    function = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in {"step", "forward"}
    )
    function.body = _shuffled(function.body, draw)
    names = sorted({
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    })
    others = [f"{draw.choice(('value', 'tmp', 'h', 'out'))}_{number}" for number in range(len(names))]
    draw.shuffle(others)
    renamed = dict(zip(names, others, strict=True))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in renamed:
            node.id = renamed[node.id]
    source = "\n" * draw.randrange(4) + "# edited\n" * draw.randrange(3) + ast.unparse(tree) + "\n"
    device = program.device
    if program.compiler != "inductor":
        device = draw.choice(("H200", "H100"))
    return replace(program, source=source, batch=draw.choice((64, 64, 96, 128)), device=device)


def _shuffled(body: Sequence[ast.stmt], draw: random.Random) -> list[ast.stmt]:
    """Statements in a random order in which each comes after those whose results it reads; the return stays last."""
    *rest, last = body
    order: list[ast.stmt] = []
    made: set[str] = set()
    all_made = {name for statement in rest for name in _names(statement, ast.Store)}
    while rest:
        ready = [s for s in rest if _names(s, ast.Load) & all_made <= made]
        chosen = draw.choice(ready)
        order.append(chosen)
        made |= _names(chosen, ast.Store)
        rest.remove(chosen)
    return [*order, last]


def _names(statement: ast.stmt, context: type) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
