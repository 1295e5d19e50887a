"""From PyTorch and JAX to fusions: capture, lowerings, regions, the torch.compile backend, the map of a model.

Torch and JAX are imported when something is captured, not before: `fuser_lab.bridge.requirement` is the
only way to them.
"""
