"""Plans of torch.compile's Inductor: read while it compiles, and forced on it by its choices handler."""

from fuser_lab.compilers.inductor.model import CompiledModel as CompiledModel
from fuser_lab.compilers.inductor.model import from_inductor as from_inductor
