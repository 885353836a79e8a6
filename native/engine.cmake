# The engine as a static library, `hccl_py_engine`: plans, executor, groups and transports. Knows no Python.
# Included by the package's CMakeLists.txt and by tests/native.
include_guard(GLOBAL)
include(${CMAKE_CURRENT_LIST_DIR}/kernels.cmake)
find_package(Threads REQUIRED)

# The kernels for GPUs travel as text: they are compiled where they run.
foreach(part EXCHANGE EXCHANGE_TYPES EXCHANGE_DEVICE EXCHANGE_CARRY EXCHANGE_ELEMENTS)
  string(TOLOWER ${part} file)
  file(READ ${CMAKE_CURRENT_LIST_DIR}/kernels/${file}.hpp HCCL_PY_${part})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/kernels/${file}.hpp)
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/kernel_sources.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cpp @ONLY)

set(HCCL_PY_ENGINE_DIR ${CMAKE_CURRENT_LIST_DIR}/src)
add_library(hccl_py_engine STATIC
  ${HCCL_PY_ENGINE_DIR}/bells.cpp
  ${HCCL_PY_ENGINE_DIR}/call.cpp
  ${HCCL_PY_ENGINE_DIR}/contract.cpp
  ${HCCL_PY_ENGINE_DIR}/device_group.cpp
  ${HCCL_PY_ENGINE_DIR}/devices/cuda.cpp
  ${HCCL_PY_ENGINE_DIR}/devices/host.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/kernel_sources.cpp
  ${HCCL_PY_ENGINE_DIR}/error.cpp
  ${HCCL_PY_ENGINE_DIR}/executor.cpp
  ${HCCL_PY_ENGINE_DIR}/executor_folds.cpp
  ${HCCL_PY_ENGINE_DIR}/executor_messages.cpp
  ${HCCL_PY_ENGINE_DIR}/failure.cpp
  ${HCCL_PY_ENGINE_DIR}/fork.cpp
  ${HCCL_PY_ENGINE_DIR}/group.cpp
  ${HCCL_PY_ENGINE_DIR}/group_collective.cpp
  ${HCCL_PY_ENGINE_DIR}/group_connect.cpp
  ${HCCL_PY_ENGINE_DIR}/group_trouble.cpp
  ${HCCL_PY_ENGINE_DIR}/introduction.cpp
  ${HCCL_PY_ENGINE_DIR}/placement.cpp
  ${HCCL_PY_ENGINE_DIR}/point_to_point.cpp
  ${HCCL_PY_ENGINE_DIR}/program.cpp
  ${HCCL_PY_ENGINE_DIR}/progress.cpp
  ${HCCL_PY_ENGINE_DIR}/segments.cpp
  ${HCCL_PY_ENGINE_DIR}/shared_fold.cpp
  ${HCCL_PY_ENGINE_DIR}/slot_call.cpp
  ${HCCL_PY_ENGINE_DIR}/waiter.cpp
  ${HCCL_PY_ENGINE_DIR}/wire.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/interfaces.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/loopback.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/poller.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/shm.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/socket.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/tcp.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/tcp_connection.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/tcp_congestion.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/tcp_trace.cpp
  ${HCCL_PY_ENGINE_DIR}/transports/tcp_mesh.cpp
)
target_compile_options(hccl_py_engine PRIVATE -O2 -Wall -Wextra)
set_source_files_properties(${HCCL_PY_ENGINE_DIR}/devices/host.cpp PROPERTIES COMPILE_OPTIONS "-Wno-unknown-pragmas")
target_link_libraries(hccl_py_engine PUBLIC hccl_py_kernels Threads::Threads ${CMAKE_DL_LIBS})
# HCCL_PY_CHECKED_FLAGS: what tests/native compiles with under sanitizers.
target_compile_options(hccl_py_engine PRIVATE $<IF:$<BOOL:${HCCL_PY_SANITIZE}>,${HCCL_PY_CHECKED_FLAGS},-O2> -Wall -Wextra)
target_link_libraries(hccl_py_engine PUBLIC hccl_py_kernels Threads::Threads)
set_target_properties(hccl_py_engine PROPERTIES
  CXX_EXTENSIONS OFF
  POSITION_INDEPENDENT_CODE ON
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
)
