// SPDX-License-Identifier: Apache-2.0
#include "array.hpp"

#include <nanobind/ndarray.h>

#include <initializer_list>

#include "hccl_py/types.hpp"
#include "numpy_array.hpp"

namespace nb = nanobind;

namespace hccl_py {
namespace {

// DLPack 1.1; nanobind has no names for them.
constexpr std::uint8_t kFloat8E4M3Fn = 10;
constexpr std::uint8_t kFloat8E5M2 = 12;

int dtype_of(nb::dlpack::dtype type) {
  if (type.lanes != 1) return -1;
  const auto among = [&](std::initializer_list<DType> candidates) {
    for (DType d : candidates)
      if (size_of(d) * 8 == type.bits) return static_cast<int>(d);
    return -1;
  };
  const auto is = [&](nb::dlpack::dtype_code code) { return type.code == static_cast<std::uint8_t>(code); };
  if (is(nb::dlpack::dtype_code::Float)) return among({DType::float64, DType::float32, DType::float16});
  if (is(nb::dlpack::dtype_code::Int)) return among({DType::int8, DType::int16, DType::int32, DType::int64});
  if (is(nb::dlpack::dtype_code::UInt)) return among({DType::uint8, DType::uint16, DType::uint32, DType::uint64});
  if (is(nb::dlpack::dtype_code::Bfloat)) return among({DType::bfloat16});
  if (is(nb::dlpack::dtype_code::Bool)) return among({DType::bool_});
  if (type.code == kFloat8E4M3Fn) return among({DType::float8_e4m3});
  if (type.code == kFloat8E5M2) return among({DType::float8_e5m2});
  return -1;
}

template <class A>
bool contiguous(const A& array) {
  std::int64_t stride = 1;
  if (array.size() == 0) return true;
  for (std::size_t k = array.ndim(); k-- > 0;) {
    if (array.shape(k) != 1 && array.stride(k) != stride) return false;
    stride *= static_cast<std::int64_t>(array.shape(k));
  }
  return true;
}

template <class A>
void fill(const A& in, bool readonly, Array& out) {
  out.data = const_cast<void*>(static_cast<const void*>(in.data()));
  out.count = in.size();
  out.dtype = dtype_of(in.dtype());
  out.contiguous = contiguous(in);
  out.readonly = readonly;
  out.on_host = in.device_type() == nb::device::cpu::value;
}

// Under the GIL.
NumpyArrays& numpy_arrays() {
  static NumpyArrays arrays;
  return arrays;
}

// Not for the short way: a tensor of torch whose values are the negated memory, and an array of a GPU (to ask CuPy's for
// DLPack would make streams wait).
bool is_special(nb::handle object) {
  if (!nb::hasattr(object, "is_neg")) return nb::hasattr(object.type(), "__cuda_array_interface__");
  const nb::object negated = object.attr("is_neg")();
  return PyObject_IsTrue(negated.ptr()) == 1;
}

bool look_long(nb::handle object, Array& array) {
  nb::object view;
  if (!nb::hasattr(object, "__dlpack__")) {
    // nanobind reads strides that some (ctypes) do not give; a memoryview always has them.
    view = nb::steal(PyMemoryView_FromObject(object.ptr()));
    if (!view.is_valid()) {
      PyErr_Clear();
      return false;
    }
    object = view;
  }
  if (nb::ndarray<> writable; nb::try_cast(object, writable, false)) {
    fill(writable, false, array);
    return true;
  }
  if (nb::ndarray<nb::ro> fixed; nb::try_cast(object, fixed, false)) {
    fill(fixed, true, array);
    return true;
  }
  return false;
}

}  // namespace

bool look_at(nb::handle object, Array& array) {
  NumpyArrays& known = numpy_arrays();
  if (known.look_at(object, array)) return true;
  if (object.is_none() || is_special(object) || !look_long(object, array)) return false;
  known.learn(object, array);
  return true;
}

}  // namespace hccl_py
