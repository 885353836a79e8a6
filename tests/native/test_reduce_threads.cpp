// SPDX-License-Identifier: Apache-2.0
// The kernels hold no state: threads that choose one at the same time and fold neighbouring parts of the same buffers
// get what one thread gets. Worth running under the thread sanitizer.
#include <cstdint>
#include <thread>
#include <vector>

#include "check.hpp"
#include "hccl_py/reduce.hpp"

namespace {

using namespace hccl_py;

constexpr std::size_t kThreads = 4;
constexpr std::size_t kCount = 10001;

template <class T>
void fold_part(DType dtype, ReduceOp op, const std::vector<T>& a, std::vector<T>& inout, std::size_t part,
               std::size_t parts) {
  const std::size_t begin = kCount * part / parts;
  const std::size_t end = kCount * (part + 1) / parts;
  const FoldSource sources[] = {{a.data() + begin, true}, {inout.data() + begin, true}};
  fold_kernel(op, dtype, best_isa())(inout.data() + begin, sources, 2, end - begin, 0.5);
}

template <class T>
void check_parts(DType dtype, ReduceOp op) {
  std::vector<T> a(kCount);
  std::vector<T> alone(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<T>(i % 97);
    alone[i] = static_cast<T>(i % 89);
  }
  std::vector<T> together = alone;
  fold_part(dtype, op, a, alone, 0, 1);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] { fold_part(dtype, op, a, together, t, kThreads); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together == alone);
  CHECK(alone != a);
}

void test_threads_fold_parts_of_one_buffer() {
  check_parts<float>(DType::float32, ReduceOp::sum);
  check_parts<double>(DType::float64, ReduceOp::avg);
  check_parts<std::uint16_t>(DType::bfloat16, ReduceOp::sum);
  check_parts<std::uint16_t>(DType::float16, ReduceOp::max);
  check_parts<std::uint8_t>(DType::float8_e4m3, ReduceOp::sum);
  check_parts<std::int8_t>(DType::int8, ReduceOp::prod);
}

void test_threads_copy_parts_of_one_buffer() {
  std::vector<char> in(std::size_t{1} << 20);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i % 251);
  std::vector<char> out(in.size());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::size_t begin = in.size() * t / kThreads;
      copy_bytes(out.data() + begin, in.data() + begin, in.size() * (t + 1) / kThreads - begin);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(out == in);
}

}  // namespace

int main() {
  return hccl_py::testing::run_tests({
      {"threads fold parts of one buffer", test_threads_fold_parts_of_one_buffer},
      {"threads copy parts of one buffer", test_threads_copy_parts_of_one_buffer},
  });
}
