"""From PyTorch to fusions: capture, lowerings of ATen ops, regions, the torch.compile backend, the map of a model.

Torch is imported when something is captured, not before: `fuser_lab.bridge.requirement` is the only way to it.
"""
