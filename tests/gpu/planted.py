"""One defective kernel per tool of the sanitizer, which the tool must report; otherwise a clean run proves nothing."""

import ctypes

# A store one element beyond an allocation; threads that read what an adjacent one writes, without a barrier; a
# warp whose halves wait at two different barriers.
_HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
PTX = {
    "memcheck": _HEAD + """
.visible .entry planted(.param .u64 out) {
    .reg .b64 %a<3>;
    ld.param.u64 %a1, [out];
    cvta.to.global.u64 %a2, %a1;
    st.global.u32 [%a2 + 256], 7;
    ret;
}
""",
    "racecheck": _HEAD + """
.visible .entry planted(.param .u64 out) {
    .reg .b32 %r<6>;
    .reg .b64 %a<5>;
    .shared .align 4 .b8 words[260];
    ld.param.u64 %a1, [out];
    cvta.to.global.u64 %a2, %a1;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, words;
    shl.b32 %r3, %r1, 2;
    add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    ld.shared.u32 %r5, [%r4 + 4];
    mul.wide.u32 %a3, %r1, 4;
    add.u64 %a4, %a2, %a3;
    st.global.u32 [%a4], %r5;
    ret;
}
""",
    "synccheck": _HEAD + """
.visible .entry planted(.param .u64 out) {
    .reg .pred %p;
    .reg .b32 %r<3>;
    .reg .b64 %a<3>;
    ld.param.u64 %a1, [out];
    cvta.to.global.u64 %a2, %a1;
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p, %r1, 16;
    @%p bra OTHER;
    bar.sync 0;
    st.global.u32 [%a2], %r1;
    bra END;
OTHER:
    bar.sync 0;
    st.global.u32 [%a2 + 4], %r1;
END:
    ret;
}
""",
}


def run(tool: str) -> None:
    """Launch a tool's kernel: one block of 64 threads, with 64 words of memory."""
    import torch

    from fuser_lab.runtime.gpu.driver import bindings, check

    driver = bindings()
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    status, module = driver.cuModuleLoadData(PTX[tool].encode() + b"\0")
    check(status, "loading the planted kernel")
    status, function = driver.cuModuleGetFunction(module, b"planted")
    check(status, "finding the planted kernel")
    address = ctypes.c_void_p(out.data_ptr())
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    driver.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, 0, ctypes.addressof(arguments), 0)
    driver.cuCtxSynchronize()
