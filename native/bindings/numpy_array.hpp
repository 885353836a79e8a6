// SPDX-License-Identifier: Apache-2.0
// The short way to a NumPy array's memory: its fields, where NumPy's C ABI has them (ndarraytypes.h, PyArrayObject_fields:
// unchanged from 1.7 to 2.x), a few nanoseconds instead of the half microsecond of a protocol. Trusted only once an
// array was seen whose fields say what DLPack says of it.
#pragma once

#include "array.hpp"

namespace hccl_py {

class NumpyArrays {
 public:
  // False if the object takes the long way.
  bool look_at(nanobind::handle object, Array& array) const;
  // Learns from an object of which the long way has told the truth.
  void learn(nanobind::handle object, const Array& truth);

 private:
  struct Known {
    PyObject* description;  // of the element type; kept alive
    int dtype;
  };
  static constexpr std::size_t kMost = 32;
  PyTypeObject* type_ = nullptr;  // numpy.ndarray; kept alive
  Known known_[kMost] = {};
  std::size_t num_known_ = 0;
};

}  // namespace hccl_py
