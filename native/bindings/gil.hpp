// SPDX-License-Identifier: Apache-2.0
// Letting the GIL go and taking it. Where the interpreter ends meanwhile, Python up to 3.13 ends a thread that wants the
// GIL by unwinding its stack (pthread_exit), which neither destructors nor nanobind survive: that thread stays here until
// the process is gone, as 3.14 has it (docs.python.org, C API, "Cautions regarding runtime finalization").
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace hccl_py {

// Runs what takes the GIL, Python code too: that lets it go and takes it again. It must not throw.
template <class Take>
void or_stay(const Take& take) {
  struct Stay {  // no catch: where an exception is being handled already, a second, foreign one cannot be caught
    bool unwound = true;
    ~Stay() {
      while (unwound) pause();
    }
  } stay;
  take();
  stay.unwound = false;
}

// Without the GIL while it lives.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    or_stay([this] { PyEval_RestoreThread(thread_); });
  }

 private:
  PyThreadState* thread_;
};

// With the GIL while it lives.
class WithGil {
 public:
  WithGil() {
    or_stay([this] { state_ = PyGILState_Ensure(); });
  }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_{};
};

}  // namespace hccl_py
