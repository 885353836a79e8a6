// SPDX-License-Identifier: Apache-2.0
#include "hccl_py/fork.hpp"

#include <pthread.h>

namespace hccl_py {

void Forks::watch() {
  [[maybe_unused]] static const int watched = pthread_atfork(nullptr, nullptr, [] { count_.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace hccl_py
