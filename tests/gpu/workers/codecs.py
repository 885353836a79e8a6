"""The block codecs' one source, compiled by NVRTC and run on GPU 0, against the NumPy reference, bit for bit.

``codecs.py`` needs one GPU, PyTorch and a checkout (the sources are read from native/kernels).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hccl_py.compression.blocks import BLOCK, BlockCodec
from hccl_py.compression.codecs import parse_codec
from hccl_py.compression.counter import Draw
from hccl_py.gpu.nvrtc import Nvrtc

KERNELS = Path(__file__).parents[3] / "native" / "kernels"
TYPES = {
    "fp16": "Fp16", "bf16": "Bf16", "fp8_e4m3": "Fp8E4M3", "fp8_e5m2": "Fp8E5M2", "int8": "Int8", "int4": "Int4",
    "sign": "Sign",
}  # fmt: skip
COUNTS = (1, 2, 255, 256, 257, 1000, 65_536, 100_003)
SOURCE = """
#include "codecs/bf16.hpp"
#include "codecs/fp16.hpp"
#include "codecs/fp8.hpp"
#include "codecs/int4.hpp"
#include "codecs/int8.hpp"
#include "codecs/sign.hpp"
using namespace hp::HP_VARIANT;

// A warp works on a block of 256 elements; one warp a thread block.
extern "C" __global__ void encode(const float* in, u32 count, u8* out, u64 key, u64 offset) {
  __shared__ float x[kBlock];
  __shared__ u8 code[2 * kBlock + 16];
  const u32 begin = blockIdx.x * kBlock, n = count - begin < kBlock ? count - begin : kBlock;
  for (u32 i = threadIdx.x; i < kBlock; i += kLanes) x[i] = i < n ? in[begin + i] : 0.0f;
  __syncwarp();
  HP_CODEC::encode(x, n, code, Draw::of(key, offset + begin));
  __syncwarp();
  u8* to = out + u64(blockIdx.x) * HP_CODEC::payload(kBlock);
  for (u32 i = threadIdx.x; i < HP_CODEC::payload(n); i += kLanes) to[i] = code[i];
}

extern "C" __global__ void decode(const u8* in, u32 count, float* out) {
  __shared__ float y[kBlock];
  __shared__ u8 code[2 * kBlock + 16];
  const u32 begin = blockIdx.x * kBlock, n = count - begin < kBlock ? count - begin : kBlock;
  const u8* from = in + u64(blockIdx.x) * HP_CODEC::payload(kBlock);
  for (u32 i = threadIdx.x; i < sizeof code; i += kLanes) code[i] = i < HP_CODEC::payload(n) ? from[i] : 0;
  __syncwarp();
  HP_CODEC::decode(code, n, y);
  __syncwarp();
  for (u32 i = threadIdx.x; i < n; i += kLanes) out[begin + i] = y[i];
}
"""


class Module:
    """A cubin in the context that PyTorch uses."""

    def __init__(self, image: bytes) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), image)

    def launch(self, name: str, blocks: int, *arguments: Any) -> None:
        """One warp a block; waits for the end."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        places = [ctypes.cast(ctypes.byref(argument), ctypes.c_void_p) for argument in arguments]
        pointers = (ctypes.c_void_p * len(places))(*places)
        self._call("cuLaunchKernel", function, blocks, 1, 1, 32, 1, 1, 0, None, pointers, None)
        torch.cuda.synchronize()

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._cuda, name)(*arguments)
        assert status == 0, f"{name}: {status}"


def compiled(text: str) -> Module:
    major, minor = torch.cuda.get_device_capability(0)
    headers = {}
    for path in [KERNELS / "codec_words.hpp", *sorted((KERNELS / "codecs").glob("*.hpp"))]:
        # NVRTC knows headers by the words that include them.
        for name in (path.name, f"codecs/{path.name}", f"../{path.name}"):
            headers[name] = path.read_text(encoding="utf-8")
    options = [f"--gpu-architecture=sm_{major}{minor}", "--std=c++17", "--fmad=false", "-default-device"]
    image, _ = Nvrtc().compile(SOURCE, headers, [*options, "-DHP_VARIANT=device", f"-DHP_CODEC={TYPES[text]}"])
    return Module(image)


def inputs(count: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Ordinary numbers of all sizes, and what is special."""
    random = np.random.default_rng(count)
    ordinary = random.standard_normal(count).astype(np.float32)
    wide = (ordinary * np.exp2(random.integers(-140, 120, count))).astype(np.float32)
    special = ordinary.copy()
    special[random.integers(0, count, max(1, count // 300))] = np.inf
    special[random.integers(0, count, max(1, count // 500))] = np.nan
    return [ordinary, wide, special, np.zeros(count, np.float32), np.full(count, -3.5, np.float32)]


def check(text: str) -> int:
    """How many arrays gave the bits of the reference, there and back."""
    codec, module, checked = parse_codec(text), compiled(text), 0
    assert isinstance(codec, BlockCodec)
    for count in COUNTS:
        for offset, values in zip((0, 256, 1 << 20, 1 << 33, 512), inputs(count), strict=True):
            draw, blocks = Draw(3, 1, 4, 1), -(-count // BLOCK)
            wanted = codec.encode(values, draw, offset)
            data = torch.from_numpy(values).cuda()
            code = torch.zeros(len(wanted), dtype=torch.uint8, device="cuda")
            out = torch.zeros(count, device="cuda")
            c_count = ctypes.c_uint32(count)
            places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (data, code, out)]
            keys = ctypes.c_uint64(draw.key), ctypes.c_uint64(offset)
            module.launch("encode", blocks, places[0], c_count, places[1], *keys)
            module.launch("decode", blocks, places[1], c_count, places[2])
            assert np.array_equal(code.cpu().numpy(), wanted), (text, count, offset)
            assert np.array_equal(out.cpu().numpy().view(np.uint32), codec.decode(wanted, count).view(np.uint32))
            checked += 1
    return checked


def main() -> None:
    """All codecs; one line for each."""
    torch.zeros(1, device="cuda")  # makes the context
    for text in TYPES:
        print(f"{text}: {check(text)} arrays have the bits of the reference", flush=True)
    print(f"PASSED {len(TYPES)}", flush=True)


if __name__ == "__main__":
    main()
