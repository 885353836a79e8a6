# The arithmetic of the engine as a library of objects, `hccl_py_kernels`: the folds once per instruction set, chosen
# at run time. Included by the package's CMakeLists.txt and by tests/native.
include_guard(GLOBAL)

set(HCCL_PY_KERNEL_DIR ${CMAKE_CURRENT_LIST_DIR})

add_library(hccl_py_kernels OBJECT
  ${HCCL_PY_KERNEL_DIR}/src/types.cpp
  ${HCCL_PY_KERNEL_DIR}/src/cpu.cpp
  ${HCCL_PY_KERNEL_DIR}/src/copy.cpp
  ${HCCL_PY_KERNEL_DIR}/src/reduce.cpp
  ${HCCL_PY_KERNEL_DIR}/src/reduce_portable.cpp
  ${HCCL_PY_KERNEL_DIR}/src/reduce_avx2.cpp
  ${HCCL_PY_KERNEL_DIR}/src/reduce_avx512.cpp
  ${HCCL_PY_KERNEL_DIR}/src/codecs/blocks.cpp
  ${HCCL_PY_KERNEL_DIR}/src/codecs/blocks_portable.cpp
  ${HCCL_PY_KERNEL_DIR}/src/codecs/blocks_avx2.cpp
  ${HCCL_PY_KERNEL_DIR}/src/codecs/blocks_avx512.cpp
  ${HCCL_PY_KERNEL_DIR}/src/codecs/sparse.cpp
)
target_include_directories(hccl_py_kernels PUBLIC ${HCCL_PY_KERNEL_DIR}/include)
target_compile_features(hccl_py_kernels PUBLIC cxx_std_20)
# -ffp-contract=off: a fused multiply-add would give other bits in the variants that have one.
# -O1 under sanitizers: they take minutes over what -O3 unrolls.
target_compile_options(hccl_py_kernels PRIVATE
  $<IF:$<BOOL:${HCCL_PY_SANITIZE}>,-O1,-O3> -ffp-contract=off -Wall -Wextra -Wno-psabi)
set_target_properties(hccl_py_kernels PROPERTIES
  CXX_EXTENSIONS OFF
  POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
)

# The files guard themselves too: elsewhere they are empty.
# -Wno-maybe-uninitialized: intrinsics of GCC 12 start from a register that they leave undefined on purpose.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(HCCL_PY_AVX2_FLAGS -mavx2 -mfma -mf16c)
  set_source_files_properties(${HCCL_PY_KERNEL_DIR}/src/reduce_avx2.cpp
    ${HCCL_PY_KERNEL_DIR}/src/codecs/blocks_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${HCCL_PY_AVX2_FLAGS}")
  set_source_files_properties(${HCCL_PY_KERNEL_DIR}/src/codecs/blocks_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${HCCL_PY_AVX2_FLAGS};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mprefer-vector-width=512")
  set_source_files_properties(${HCCL_PY_KERNEL_DIR}/src/reduce_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${HCCL_PY_AVX2_FLAGS};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-Wno-maybe-uninitialized")
endif()
