// SPDX-License-Identifier: Apache-2.0
// The errors of the control path: the same names, arguments and defaults as hccl_py/core/errors.py, which says when
// each is raised. The data path never throws; it returns states. bindings/ translates these to the Python classes.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace hccl_py {

// "Connection refused (errno 111)".
std::string errno_text(int error);

class HcclError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ConfigError : public HcclError {
 public:
  using HcclError::HcclError;
};

class PlanError : public HcclError {
 public:
  using HcclError::HcclError;
};

class TransportError : public HcclError {
 public:
  using HcclError::HcclError;
};

class TransportUnavailableError : public TransportError {
 public:
  explicit TransportUnavailableError(const std::string& message, std::string reason = {})
      : TransportError(message), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

class PeerLostError : public TransportError {
 public:
  explicit PeerLostError(const std::string& message, int rank = -1) : TransportError(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

class CollectiveTimeoutError : public HcclError {
 public:
  explicit CollectiveTimeoutError(const std::string& message, int rank = -1, int peer = -1, int step = -1,
                                  double waited_s = 0.0)
      : HcclError(message), rank_(rank), peer_(peer), step_(step), waited_s_(waited_s) {}
  int rank() const { return rank_; }
  int peer() const { return peer_; }
  int step() const { return step_; }
  double waited_s() const { return waited_s_; }

 private:
  int rank_, peer_, step_;
  double waited_s_;
};

class DesyncError : public HcclError {
 public:
  explicit DesyncError(const std::string& message, std::string ours = {}, std::string theirs = {}, int peer = -1)
      : HcclError(message), ours_(std::move(ours)), theirs_(std::move(theirs)), peer_(peer) {}
  const std::string& ours() const { return ours_; }
  const std::string& theirs() const { return theirs_; }
  int peer() const { return peer_; }

 private:
  std::string ours_, theirs_;
  int peer_;
};

class BrokenGroupError : public HcclError {
 public:
  using HcclError::HcclError;
};

class InternalError : public HcclError {
 public:
  using HcclError::HcclError;
};

}  // namespace hccl_py
