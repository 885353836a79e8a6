// SPDX-License-Identifier: Apache-2.0
#include "numpy_array.hpp"

#include <cstring>

namespace nb = nanobind;

namespace hccl_py {
namespace {

struct Fields {
  PyObject head;
  char* data;
  int num_dimensions;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* description;
  int flags;
};
constexpr int kContiguous = 0x0001, kWriteable = 0x0400;
constexpr int kMostDimensions = 64;

const Fields& fields(nb::handle object) { return *reinterpret_cast<const Fields*>(object.ptr()); }

void fill(const Fields& in, int dtype, Array& out) {
  std::uint64_t count = 1;
  for (int k = 0; k < in.num_dimensions; ++k) count *= static_cast<std::uint64_t>(in.shape[k]);
  out = {in.data, count, dtype, (in.flags & kContiguous) != 0, (in.flags & kWriteable) == 0, true};
}

bool is_numpy(PyTypeObject* type) {
  const nb::object modules = nb::module_::import_("sys").attr("modules");
  const nb::object numpy = modules.attr("get")("numpy");
  return !numpy.is_none() && nb::object(numpy.attr("ndarray")).ptr() == reinterpret_cast<PyObject*>(type);
}

}  // namespace

bool NumpyArrays::look_at(nb::handle object, Array& array) const {
  if (Py_TYPE(object.ptr()) != type_) return false;  // subclasses may have a mind of their own
  const Fields& in = fields(object);
  for (std::size_t k = 0; k < num_known_; ++k)
    if (known_[k].description == in.description) {
      fill(in, known_[k].dtype, array);
      return true;
    }
  return false;
}

void NumpyArrays::learn(nb::handle object, const Array& truth) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if ((type_ != nullptr && type_ != type) || num_known_ == kMost || truth.dtype < 0 || !truth.on_host || truth.count == 0) return;
  if (type_ == nullptr && !is_numpy(type)) return;
  const Fields& in = fields(object);
  if (in.data != truth.data || in.num_dimensions < 0 || in.num_dimensions > kMostDimensions) return;
  Array found;
  fill(in, truth.dtype, found);
  if (found.count != truth.count || found.contiguous != truth.contiguous || found.readonly != truth.readonly) return;
  if (type_ == nullptr) Py_INCREF(reinterpret_cast<PyObject*>(type));
  type_ = type;
  Py_INCREF(in.description);
  known_[num_known_++] = {in.description, truth.dtype};
}

}  // namespace hccl_py
