"""Normalizations as nvFuser's C++ builders define them (csrc/ops/normalization.cpp); sizes are passed as numbers."""


def norm_axes(axes, normalized):
    """Return the axes that a norm reduces, the mask that broadcasts its statistics, and that of weights."""
    inner = [index >= axes - normalized for index in range(axes)]
    return list(range(axes - normalized, axes)), inner, [not flag for flag in inner]


def softmax(ops, x, axes, dim):
    mask = [axis == dim % axes for axis in range(axes)]
    exp = ops.exp(ops.sub(x, ops.broadcast(ops.max(x, [dim]), mask)))
    return ops.mul(exp, ops.reciprocal(ops.broadcast(ops.sum(exp, [dim]), mask)))


def scaled(ops, y, weight, bias, outer):
    if weight is not None:
        y = ops.mul(y, ops.broadcast(weight, outer))
    return y if bias is None else ops.add(y, ops.broadcast(bias, outer))


def layer_norm(ops, x, axes, features, weight=None, bias=None, normalized=1):
    """Return the normalized tensor, mean and inverse deviation."""
    dims, inner, outer = norm_axes(axes, normalized)
    average, squares, _ = ops.welford(x, dims)
    mean = ops.broadcast(average, inner)
    centered = ops.sub(x, mean)
    variance = ops.mul(ops.broadcast(squares, inner), 1 / features)
    inverse = ops.rsqrt(ops.add(variance, 1e-5))
    return scaled(ops, ops.mul(centered, inverse), weight, bias, outer), mean, inverse


def rms_norm(ops, x, axes, features, weight=None, normalized=1):
    """Return the normalized tensor and the inverse root of its mean square."""
    dims, inner, outer = norm_axes(axes, normalized)
    squares = ops.broadcast(ops.sum(ops.mul(x, x), dims), inner)
    inverse = ops.rsqrt(ops.add(ops.mul(squares, 1 / features), 1e-6))
    return scaled(ops, ops.mul(x, inverse), weight, None, outer), inverse


def gradient_of_input(ops, grad, x_hat, inverse, weight, axes, features, normalized):
    dims, inner, outer = norm_axes(axes, normalized)
    product = grad if weight is None else ops.mul(grad, ops.broadcast(weight, outer))
    scaled_product = ops.mul(float(features), product)
    total = ops.broadcast(ops.sum(product, dims), inner)
    correlation = ops.broadcast(ops.sum(ops.mul(product, x_hat), dims), inner)
    centered = ops.sub(ops.sub(scaled_product, total), ops.mul(x_hat, correlation))
    return ops.mul(ops.mul(1 / features, inverse), centered)


def layer_norm_backward(ops, grad, x, mean, inverse, weight, axes, features, normalized=1):
    """Return the gradients of input, weight and bias."""
    x_hat = ops.mul(ops.sub(x, mean), inverse)
    first = gradient_of_input(ops, grad, x_hat, inverse, weight, axes, features, normalized)
    outer = list(range(axes - normalized))
    return first, ops.sum(ops.mul(grad, x_hat), outer), ops.sum(grad, outer)


def rms_norm_backward(ops, grad, x, inverse, weight, axes, features, normalized=1):
    """Return the gradients of input and weight."""
    x_hat = ops.mul(x, inverse)
    first = gradient_of_input(ops, grad, x_hat, inverse, weight, axes, features, normalized)
    return first, ops.sum(ops.mul(grad, x_hat), list(range(axes - normalized)))
