"""Graphs of AOTAutograd that torch's own cache keeps on disk, so that another process does not trace them again.

Torch finds an entry of `AOTAutogradCache` by Dynamo's graph, its inputs, and torch's settings. Here its key also has
what else decides a graph of ATen ops and what is shown of it: this package's files, the options, and the modules of the
user's code. Lines of code may move; the graph is shown with the lines of this process. An entry has the graphs that
torch's partitioner made, before regions are found in them, and what AOTAutograd knows about mutations, aliases and
gradients. Where torch has no such cache, or does not keep a graph,
the graph is traced. Entries are pickles, so they are files of `fuser_lab.runtime.store`, which returns only what this
user has written. Torch's settings (``TORCHINDUCTOR_AUTOGRAD_CACHE=0``) switch the cache off.

The regions of a graph are another file (`write_parts`), found by the bytes of the graph and what decides its regions.
"""

import contextlib
import functools
import hashlib
import importlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any
from unittest import mock

from fuser_lab.bridge.graph_bytes import Lines, read_graph, write_graph
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import modules_of, origin_of, without_modes
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime import store
from fuser_lab.runtime.object_files import files_digest, read_object, write_object

Run = Callable[[list[Any]], Any]  # a graph as a function of a list of arguments, which it empties
Capture = Callable[[Any, str, bytes], Run]  # returns the run of a graph, which may be None, of a kind and with bytes

_PARTS = "parts"  # the folder of the files with regions
_CAPTURE: ContextVar[Capture] = ContextVar("_CAPTURE")  # for graphs that torch reads from its cache


def _module(name: str) -> Any:
    return importlib.import_module(name)


@functools.cache
def has_cache() -> bool:
    """Whether torch has a cache that keeps graphs of other compilers than its own (torch 2.11 has)."""
    parts = {
        "torch._functorch.config": ("bundled_autograd_cache", "force_non_lazy_backward_lowering"),
        "torch.compiler.config": ("cache_key_tag",),
        "torch._functorch._aot_autograd.aot_autograd_result": ("BundledOutputCodeLoadable",),
        "torch._functorch._aot_autograd.schemas": ("SerializableAOTDispatchCompiler",),
        "torch._functorch._aot_autograd.autograd_cache": ("AOTAutogradCache",),
        "torch._inductor.codecache": ("init_backend_registration",),
    }
    try:
        has_parts = all(hasattr(_module(name), part) for name, needed in parts.items() for part in needed)
    except ImportError:
        return False
    return has_parts and all(hasattr(_cache(), name) for name in ("iterate_over_candidates", "_write_to_local_cache"))


def _cache() -> Any:
    return _module("torch._functorch._aot_autograd.autograd_cache").AOTAutogradCache


@contextlib.contextmanager
def graphs_kept(gm: Any, names: Sequence[str], options: Any, capture: Capture) -> Iterator[None]:
    """Let torch find the graphs of Dynamo's graph ``gm`` in its cache, or keep those that it makes.

    ``capture`` is called for graphs that were found. ``names`` are the user's names of the inputs. Parts of torch are
    replaced meanwhile, which no other thread sees, because Dynamo compiles under a lock.
    """
    settings, compiling = _module("torch._functorch.config"), _module("torch.compiler.config")
    token = _CAPTURE.set(capture)
    try:
        with (
            # Torch keeps the backward graph together with the forward graph, so both are made now.
            settings.patch(
                bundled_autograd_cache=True, force_non_lazy_backward_lowering=True, enable_remote_autograd_cache=False,
            ),
            compiling.patch(cache_key_tag=f"{compiling.cache_key_tag} {_digest(gm, names, options)}"),
            mock.patch.object(_cache(), "iterate_over_candidates", _entries),
            # Inductor's generators of code do not decide these graphs; importing them takes longer than a small graph.
            mock.patch.object(_module("torch._inductor.codecache"), "init_backend_registration"),
            mock.patch.object(_cache(), "_write_to_local_cache", lambda key, entry: store.write(_file(key), entry)),
        ):
            yield
    finally:
        _CAPTURE.reset(token)


def _file(key: str) -> str:
    return f"graphs/{key}"


def _entries(_local: bool, _remote: Any, key: str) -> Iterator[tuple[Any, bytes, bool]]:
    """Yield the entry of a key as torch does: with its bytes, and that it is on this machine."""
    content = store.read(_file(key))
    if content is not None:
        yield pickle.loads(content), content, True  # noqa: S301 - written by this user and sealed


def _digest(gm: Any, names: Sequence[str], options: Any) -> str:
    """Return a digest of what decides and describes the graphs of a graph of Dynamo, and is not in torch's key."""
    torch = torch_for("fuser_lab.bridge")
    devices = torch._C._autocast_supported_devices()  # noqa: SLF001 - torch has no public name for it
    casts = [(device, torch.get_autocast_dtype(device)) for device in devices if torch.is_autocast_enabled(device)]
    # By these, torch chooses the ops of attention and of batch norm.
    cuda = torch.backends.cuda
    switches = [
        torch.backends.cudnn.enabled, cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
    ]
    digest = hashlib.sha256(repr((files_digest(), options, tuple(names), casts, switches)).encode())
    for node in gm.graph.nodes:
        digest.update(repr((origin_of(node).module, modules_of(node))).encode())
    return digest.hexdigest()


def kept_compiler(compiled: Callable[[Any, Sequence[Any]], Any]) -> Any:
    """Return a compiler that returns a `kept_graph` as one whose results torch's cache keeps."""
    schemas = _module("torch._functorch._aot_autograd.schemas")
    return schemas.SerializableAOTDispatchCompiler(_output_code(), compiled)


def kept_graph(gm: Any, kind: str, capture: Capture, lines: Lines) -> Any:
    """Return a graph of AOTAutograd as a function that runs it, and that torch's cache keeps; see `write_graph`."""
    content = b""
    with contextlib.suppress(Exception), without_modes():  # a graph without bytes is traced in each process
        content = write_graph(gm, lines)
    made = _output_code()(gm, kind, content)
    made.begin(capture)
    return made


def _read(kind: str, content: bytes) -> Any:
    """Return a compiled graph that torch's cache has read."""
    return _output_code()(None, kind, content)


def graph_of(content: bytes, lines: Lines) -> Any:
    """Return the graph module with these bytes."""
    with without_modes():
        return read_graph(content, lines)[0]


def write_parts(content: bytes, options: object, gm: Any, lines: Lines, parts: object) -> None:
    """Store a graph in which regions were found, and its parts, which contain nodes; the graph had the bytes before."""
    with contextlib.suppress(Exception), without_modes():  # otherwise, each process finds the regions
        write_object(_PARTS, _key(content, options), write_graph(gm, lines, parts))


def read_parts(content: bytes, options: object, lines: Lines) -> tuple[Any, Any] | None:
    """Return the graph and the parts that `write_parts` stored, or None."""
    stored = read_object(_PARTS, _key(content, options))
    with contextlib.suppress(Exception), without_modes():
        return None if stored is None else read_graph(stored, lines)
    return None


def _key(content: bytes, options: object) -> str:
    return f"{hashlib.sha256(content).hexdigest()} {options!r} {torch_for('fuser_lab.bridge').__version__}"


@functools.cache
def _output_code() -> Any:
    """Return the class of compiled graphs, which is a class of torch's and needs torch."""
    base: Any = _module("torch._inductor.output_code").OutputCode

    class CapturedCode(base):  # type: ignore[misc]
        """A graph that regions run; a backward graph is captured when it first runs, since it may never run."""

        def __init__(self, gm: Any, kind: str, content: bytes) -> None:
            super().__init__()
            self._boxed_call = True
            self._gm, self._kind, self._content = gm, kind, content
            self._capture: Capture | None = None
            self._run: Run | None = None
            self._lock = new_lock()

        def begin(self, capture: Capture) -> None:
            """Capture the graph, now or when it first runs."""
            self._capture = capture
            if self._kind != "backward":
                self._make_run()

        def _make_run(self) -> Run:
            assert self._capture is not None
            with self._lock:
                if self._run is None:
                    self._run, self._gm = self._capture(self._gm, self._kind, self._content), None
                return self._run

        def __call__(self, args: list[Any]) -> Any:
            return (self._run or self._make_run())(args)

        def post_compile(self, *_: Any) -> None:
            """Capture a graph that torch has read from its cache."""
            self.begin(_CAPTURE.get())

        def prepare_for_serialization(self) -> None:
            """Let torch keep nothing if there are no bytes."""
            if not self._content:
                msg = "fuser_lab cannot store the graph"
                raise _module("torch._functorch._aot_autograd.autograd_cache").BypassAOTAutogradCache(msg)

        def set_triton_bundle(self, bundle: Any) -> None:
            """Do nothing: there is no kernel of Triton."""

        def __copy__(self) -> Any:
            return self  # what torch pickles

        def __reduce__(self) -> Any:
            return _read, (self._kind, self._content)

    return CapturedCode
