"""Names of ``fd.ops`` that nvFuser has and this package does not, each with the reason."""

_CUTLASS = "it is a CUTLASS kernel for scaled low-precision operands"
_BLOCKS = "tensors of 4-bit floats, quantized in blocks with 8-bit scales, are not implemented"

UNSUPPORTED: dict[str, str] = {
    "scaled_mm": _CUTLASS,
    "cutlass_nvfp4_grouped_mm": _CUTLASS,
    "preprocess_grouped_matmul_input_sf": _CUTLASS,
    "nv_block_quantize": _BLOCKS,
    "nv_grouped_block_quantize": _BLOCKS,
}


def refusal(name: str) -> str:
    """Return the error message for a call of one of these."""
    return f"fd.ops.{name} is not supported: {UNSUPPORTED[name]}."
