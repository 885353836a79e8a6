// SPDX-License-Identifier: Apache-2.0
// Rates of the folds and of copy_bytes in GB/s of one operand (10^9 bytes a second), best of many repetitions.
// Usage: bench_reduce [dtype|all] [op|all] [num_sources] [in|out]; "in" (in place) is the default. Not a test.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "hccl_py/reduce.hpp"

namespace {

using namespace hccl_py;

constexpr std::size_t kSizes[] = {256, 4 << 10, 16 << 10, 128 << 10, 1 << 20, 16 << 20};
constexpr double kSecondsEach = 0.02;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Best rate of a call that passes over `bytes`.
template <class Call>
double best_GBps(std::size_t bytes, Call call) {
  const int repeats = bytes >= (1 << 20) ? 1 : static_cast<int>((1 << 20) / bytes);
  double best_s = 1e9;
  call();
  for (const double end = now_s() + kSecondsEach; now_s() < end;) {
    const double begin = now_s();
    for (int i = 0; i < repeats; ++i) call();
    const double each = (now_s() - begin) / repeats;
    if (each < best_s) best_s = each;
  }
  return static_cast<double>(bytes) / best_s / 1e9;
}

// Aligned as tensors are.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : data_(static_cast<char*>(std::aligned_alloc(4096, bytes)), &std::free) {
    std::memset(data_.get(), 0, bytes);
  }
  char* data() const { return data_.get(); }

 private:
  std::unique_ptr<char, decltype(&std::free)> data_;
};

struct Buffers {
  std::vector<Buffer> source;
  Buffer out;
};

void bench_fold(Isa isa, DType dtype, ReduceOp op, std::size_t num_sources, bool in_place, Buffers& buffers) {
  const FoldFn fold = fold_kernel(op, dtype, isa);
  if (fold == nullptr) return;
  const char* place = in_place ? "in" : "out";
  std::printf("%-9s %-12s %-5s %zu %-4s", name_of(isa), name_of(dtype), name_of(op), num_sources, place);
  for (const std::size_t bytes : kSizes) {
    std::vector<FoldSource> sources;
    for (std::size_t s = 0; s < num_sources; ++s) sources.push_back({buffers.source[s].data(), true});
    void* out = in_place ? buffers.source[0].data() : buffers.out.data();
    const std::size_t count = bytes / size_of(dtype);
    // Zeros stay zeros in place, so that no operand drifts to infinity or to denormals.
    std::printf(" %8.1f", best_GBps(bytes, [&] { fold(out, sources.data(), num_sources, count, 0.5); }));
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype_name = argc > 1 ? argv[1] : "all";
  const std::string op_name = argc > 2 ? argv[2] : "sum";
  const std::size_t num_sources = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 2;
  const bool in_place = argc <= 4 || std::strcmp(argv[4], "out") != 0;
  if (num_sources == 0) return 2;

  constexpr std::size_t kLargest = kSizes[std::size(kSizes) - 1];
  Buffers buffers{{}, Buffer(kLargest)};
  for (std::size_t s = 0; s < num_sources; ++s) buffers.source.emplace_back(kLargest);

  std::printf("GB/s of one operand%*s", 15, "");
  for (const std::size_t bytes : kSizes) std::printf(" %8zu", bytes);
  std::printf("\n");
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    if (dtype_name != "all" && dtype_name != name_of(dtype)) continue;
    for (int o = 0; o < kNumReduceOps; ++o) {
      const ReduceOp op = static_cast<ReduceOp>(o);
      if (op_name != "all" && op_name != name_of(op)) continue;
      for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa <= best_isa()) bench_fold(isa, dtype, op, num_sources, in_place, buffers);
      }
    }
  }
  std::printf("%-34s", "copy_bytes");
  for (const std::size_t bytes : kSizes) {
    std::printf(" %8.1f", best_GBps(bytes, [&] { copy_bytes(buffers.out.data(), buffers.source[0].data(), bytes); }));
  }
  std::printf("\n");
  return 0;
}
