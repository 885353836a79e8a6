// SPDX-License-Identifier: Apache-2.0
// A ring all-reduce written by hand on the engine's own channels: what a plan is compared with.
#pragma once

#include <cstddef>
#include <memory>

#include "hccl_py/shm.hpp"

namespace hccl_py::perf {

// A rank of two that share a host, with one channel in each direction; no group, no plan, no contract around it.
class Ring {
 public:
  // The two meet by `doors` and `bells`, the names of both.
  Ring(const ShmDoor& door, const BellSocket& bell, const std::vector<std::string>& doors, const std::vector<std::string>& bells,
       int rank, const ShmOptions& options);
  // out = in + the other rank's in, float32, `bytes` in all; segments of `segment_bytes`.
  void all_reduce(const std::byte* in, std::byte* out, std::size_t bytes, std::size_t segment_bytes);

 private:
  void exchange(const std::byte* send, std::size_t send_bytes, const std::byte* fold_with, std::byte* recv, std::size_t recv_bytes,
                std::size_t segment_bytes);

  ShmHost host_;
  SendPipe& to_;
  RecvPipe& from_;
  int rank_;
};

}  // namespace hccl_py::perf
