// SPDX-License-Identifier: Apache-2.0
// Looks up a block codec, and the lossless one, among the variants that are built in.
#include "hccl_py/codecs.hpp"

namespace hp::portable {
hccl_py::BlockCodec block_codec(hccl_py::CodecId id, hccl_py::DType dtype);
hccl_py::LosslessCodec lossless_codec();
}
#if defined(__x86_64__)
namespace hp::avx2 {
hccl_py::BlockCodec block_codec(hccl_py::CodecId id, hccl_py::DType dtype);
hccl_py::LosslessCodec lossless_codec();
}
namespace hp::avx512 {
hccl_py::BlockCodec block_codec(hccl_py::CodecId id, hccl_py::DType dtype);
hccl_py::LosslessCodec lossless_codec();
}
#endif

namespace hccl_py {

BlockCodec block_codec(CodecId id, DType dtype, Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return hp::avx2::block_codec(id, dtype);
  if (isa == Isa::avx512) return hp::avx512::block_codec(id, dtype);
#endif
  return isa == Isa::portable ? hp::portable::block_codec(id, dtype) : BlockCodec{};
}

LosslessCodec lossless_codec(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return hp::avx2::lossless_codec();
  if (isa == Isa::avx512) return hp::avx512::lossless_codec();
#endif
  return isa == Isa::portable ? hp::portable::lossless_codec() : LosslessCodec{};
}

}  // namespace hccl_py
