// SPDX-License-Identifier: Apache-2.0
// CUDA through its driver, libcuda.so.1, loaded when the first device is made: nothing of CUDA is needed to build.
#include <dlfcn.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "hccl_py/device.hpp"
#include "hccl_py/error.hpp"

namespace hccl_py {
namespace {

using CuResult = int;
using CuAddress = unsigned long long;
struct CuIpcHandle {
  char bytes[64];
};

struct Driver {
  CuResult (*init)(unsigned);
  CuResult (*device_get)(int*, int);
  CuResult (*retain)(void**, int);
  CuResult (*release)(int);
  CuResult (*current)(void**);
  CuResult (*set_current)(void*);
  CuResult (*mem_alloc)(CuAddress*, std::size_t);
  CuResult (*mem_free)(CuAddress);
  CuResult (*memset8)(CuAddress, unsigned char, std::size_t);
  CuResult (*host_alloc)(void**, std::size_t, unsigned);
  CuResult (*host_free)(void*);
  CuResult (*host_address)(CuAddress*, void*, unsigned);
  CuResult (*ipc_get)(CuIpcHandle*, CuAddress);
  CuResult (*ipc_open)(CuAddress*, CuIpcHandle, unsigned);
  CuResult (*ipc_close)(CuAddress);
  CuResult (*can_access)(int*, int, int);
  CuResult (*enable_peer)(void*, unsigned);
  CuResult (*module_load)(void**, const void*);
  CuResult (*module_unload)(void*);
  CuResult (*module_function)(void**, void*, const char*);
  CuResult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  CuResult (*event_create)(void**, unsigned);
  CuResult (*event_destroy)(void*);
  CuResult (*event_record)(void*, void*);
  CuResult (*stream_wait)(void*, void*, unsigned);
  CuResult (*capture_info)(void*, int*, unsigned long long*, void*, void*, void*);
  CuResult (*context_sync)();
  CuResult (*error_text)(CuResult, const char**);
  CuResult (*copy)(CuAddress, CuAddress, std::size_t, void*);
  CuResult (*stream_create)(void**, unsigned, int);
  CuResult (*stream_destroy)(void*);
  CuResult (*stream_priorities)(int*, int*);
  CuResult (*device_attribute)(int*, int, int);
  CuResult (*function_attribute)(void*, int, int);
};

const Driver& driver() {
  static Driver d;
  static std::once_flag once;
  static std::string missing;
  std::call_once(once, [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      missing = dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (!function && missing.empty()) missing = std::string("libcuda.so.1 has no ") + name;
    };
    find(d.init, "cuInit");
    find(d.device_get, "cuDeviceGet");
    find(d.retain, "cuDevicePrimaryCtxRetain");
    find(d.release, "cuDevicePrimaryCtxRelease_v2");
    find(d.current, "cuCtxGetCurrent");
    find(d.set_current, "cuCtxSetCurrent");
    find(d.mem_alloc, "cuMemAlloc_v2");
    find(d.mem_free, "cuMemFree_v2");
    find(d.memset8, "cuMemsetD8_v2");
    find(d.host_alloc, "cuMemHostAlloc");
    find(d.host_free, "cuMemFreeHost");
    find(d.host_address, "cuMemHostGetDevicePointer_v2");
    find(d.ipc_get, "cuIpcGetMemHandle");
    find(d.ipc_open, "cuIpcOpenMemHandle_v2");
    find(d.ipc_close, "cuIpcCloseMemHandle");
    find(d.can_access, "cuDeviceCanAccessPeer");
    find(d.enable_peer, "cuCtxEnablePeerAccess");
    find(d.module_load, "cuModuleLoadData");
    find(d.module_unload, "cuModuleUnload");
    find(d.module_function, "cuModuleGetFunction");
    find(d.launch, "cuLaunchKernel");
    find(d.event_create, "cuEventCreate");
    find(d.event_destroy, "cuEventDestroy_v2");
    find(d.event_record, "cuEventRecord");
    find(d.stream_wait, "cuStreamWaitEvent");
    find(d.capture_info, "cuStreamGetCaptureInfo_v2");
    find(d.context_sync, "cuCtxSynchronize");
    find(d.error_text, "cuGetErrorString");
    find(d.copy, "cuMemcpyAsync");
    find(d.stream_create, "cuStreamCreateWithPriority");
    find(d.stream_destroy, "cuStreamDestroy_v2");
    find(d.stream_priorities, "cuCtxGetStreamPriorityRange");
    find(d.device_attribute, "cuDeviceGetAttribute");
    find(d.function_attribute, "cuFuncSetAttribute");
    if (missing.empty() && d.init(0) != 0) missing = "cuInit failed: no usable NVIDIA GPU";
  });
  if (!missing.empty()) throw TransportUnavailableError("no CUDA driver here: " + missing, missing);
  return d;
}

// What a handle says: which process and GPU, and both ways to the memory.
struct Handle {
  std::uint64_t process, address;
  std::int64_t ordinal;
  CuIpcHandle ipc;
};

std::uint64_t this_process() {
  static const std::uint64_t id = [] {
    std::random_device random;
    return (std::uint64_t{random()} << 32 | random()) ^ static_cast<std::uint64_t>(getpid());
  }();
  return id;
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : d_(driver()), ordinal_(ordinal) {
    ask(d_.device_get(&device_, ordinal), "cuDeviceGet");
    ask(d_.retain(&context_, device_), "cuDevicePrimaryCtxRetain");
    constexpr int kMajorVersion = 75;
    int major = 0;
    ask(d_.device_attribute(&major, kMajorVersion, device_), "cuDeviceGetAttribute");
    has_bulk_copies_ = major >= 9;
  }

  ~CudaDevice() override {
    for (void* module : modules_) d_.module_unload(module);
    d_.release(device_);
  }

  Address allocate(std::size_t num_bytes) override {
    const Current current(*this);
    CuAddress address = 0;
    ask(d_.mem_alloc(&address, num_bytes), "cuMemAlloc");
    ask(d_.memset8(address, 0, num_bytes), "cuMemsetD8");
    ask(d_.context_sync(), "cuCtxSynchronize");
    return address;
  }

  void free(Address address) noexcept override {
    const Current current(*this);
    d_.mem_free(address);
  }

  std::string share(Address address) override {
    const Current current(*this);
    Handle handle{this_process(), address, ordinal_, {}};
    ask(d_.ipc_get(&handle.ipc, address), "cuIpcGetMemHandle");
    return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
  }

  Address map(std::string_view text) override {
    const Handle handle = read(text);
    const Current current(*this);
    if (handle.process != this_process()) {
      CuAddress address = 0;
      constexpr unsigned kLazyPeerAccess = 1;
      const CuResult result = d_.ipc_open(&address, handle.ipc, kLazyPeerAccess);
      if (result)
        throw TransportUnavailableError("GPU " + std::to_string(ordinal_) + " cannot reach the memory of a peer's GPU: " + text_of(result),
                                        "no peer access");
      return address;
    }
    if (handle.ordinal != ordinal_) {
      int theirs = 0, can = 0;
      void* context = nullptr;
      ask(d_.device_get(&theirs, static_cast<int>(handle.ordinal)), "cuDeviceGet");
      ask(d_.can_access(&can, device_, theirs), "cuDeviceCanAccessPeer");
      if (!can) throw TransportUnavailableError("GPUs " + std::to_string(ordinal_) + " and " + std::to_string(handle.ordinal) + " have no peer access", "no peer access");
      ask(d_.retain(&context, theirs), "cuDevicePrimaryCtxRetain");
      constexpr CuResult kAlreadyEnabled = 704;
      const CuResult result = d_.enable_peer(context, 0);
      d_.release(theirs);
      if (result != kAlreadyEnabled) ask(result, "cuCtxEnablePeerAccess");
    }
    return handle.address;
  }

  void unmap(Address address, std::string_view text) noexcept override {
    Handle handle;
    if (text.size() != sizeof handle) return;
    std::memcpy(&handle, text.data(), sizeof handle);
    if (handle.process == this_process()) return;
    const Current current(*this);
    d_.ipc_close(address);
  }

  void* allocate_host(std::size_t num_bytes, Address& on_device) override {
    const Current current(*this);
    void* memory = nullptr;
    constexpr unsigned kPortableAndMapped = 3;
    ask(d_.host_alloc(&memory, num_bytes, kPortableAndMapped), "cuMemHostAlloc");
    std::memset(memory, 0, num_bytes);
    CuAddress address = 0;
    ask(d_.host_address(&address, memory, 0), "cuMemHostGetDevicePointer");
    on_device = address;
    return memory;
  }

  void free_host(void* memory) noexcept override {
    const Current current(*this);
    d_.host_free(memory);
  }

  Kernel load(std::string_view image, const char* name) override {
    const Current current(*this);
    void* module = nullptr;
    void* function = nullptr;
    ask(d_.module_load(&module, std::string(image).c_str()), "cuModuleLoadData");
    modules_.push_back(module);
    ask(d_.module_function(&function, module, name), "cuModuleGetFunction");
    constexpr int kMostDynamicShared = 8;
    if (has_bulk_copies_ && std::strcmp(name, "hp_large") == 0)
      ask(d_.function_attribute(function, kMostDynamicShared, HP_BULK_BYTES), "cuFuncSetAttribute");
    return reinterpret_cast<Kernel>(function);
  }

  bool launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads, HpExchange& exchange, Stream stream) noexcept override {
    const Current current(*this);
    void* arguments[] = {&exchange};
    if (!has_bulk_copies_) exchange.bulk = 0;
    const unsigned shared_bytes = exchange.bulk ? HP_BULK_BYTES : 0;
    return ok(d_.launch(reinterpret_cast<void*>(kernel), blocks, 1, 1, threads, 1, 1, shared_bytes, reinterpret_cast<void*>(stream), arguments, nullptr));
  }

  bool copy(Address to, Address from, std::size_t num_bytes, Stream stream) noexcept override {
    const Current current(*this);
    return ok(d_.copy(to, from, num_bytes, reinterpret_cast<void*>(stream)));
  }

  Stream make_stream() override {
    const Current current(*this);
    int least = 0, greatest = 0;
    void* stream = nullptr;
    constexpr unsigned kNonBlocking = 1;
    ask(d_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
    ask(d_.stream_create(&stream, kNonBlocking, greatest), "cuStreamCreateWithPriority");
    return reinterpret_cast<Stream>(stream);
  }

  void free_stream(Stream stream) noexcept override {
    const Current current(*this);
    d_.stream_destroy(reinterpret_cast<void*>(stream));
  }

  Event make_event() override {
    const Current current(*this);
    void* event = nullptr;
    constexpr unsigned kNoTiming = 2;
    ask(d_.event_create(&event, kNoTiming), "cuEventCreate");
    return reinterpret_cast<Event>(event);
  }

  void free_event(Event event) noexcept override {
    const Current current(*this);
    d_.event_destroy(reinterpret_cast<void*>(event));
  }

  bool order(Event event, Stream before, Stream after) noexcept override {
    const Current current(*this);
    return ok(d_.event_record(reinterpret_cast<void*>(event), reinterpret_cast<void*>(before))) &&
           ok(d_.stream_wait(reinterpret_cast<void*>(after), reinterpret_cast<void*>(event), 0));
  }

  std::uint64_t capture_of(Stream stream) noexcept override {
    const Current current(*this);
    int status = 0;
    unsigned long long id = 0;
    if (d_.capture_info(reinterpret_cast<void*>(stream), &status, &id, nullptr, nullptr, nullptr)) return 0;
    return status == 1 ? id : 0;
  }

  std::string last_error() const override { return text_of(last_); }

 private:
  // Makes our context current for a while, where it is not.
  class Current {
   public:
    explicit Current(const CudaDevice& device) : d_(device.d_) {
      d_.current(&before_);
      if (before_ == device.context_) return;
      changed_ = true;
      d_.set_current(device.context_);
    }
    ~Current() {
      if (changed_) d_.set_current(before_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& d_;
    void* before_ = nullptr;
    bool changed_ = false;
  };

  static Handle read(std::string_view text) {
    Handle handle;
    if (text.size() != sizeof handle) throw InternalError("the handle of a peer's memory is of another version");
    std::memcpy(&handle, text.data(), sizeof handle);
    return handle;
  }

  std::string text_of(CuResult result) const {
    const char* text = nullptr;
    d_.error_text(result, &text);
    return std::string(text ? text : "unknown") + " (" + std::to_string(result) + ")";
  }

  void ask(CuResult result, const char* what) const {
    if (result) throw InternalError(std::string(what) + " on GPU " + std::to_string(ordinal_) + ": " + text_of(result));
  }

  bool ok(CuResult result) noexcept {
    if (result) last_ = result;
    return result == 0;
  }

  const Driver& d_;
  const int ordinal_;
  int device_ = 0;
  bool has_bulk_copies_ = false;
  void* context_ = nullptr;
  std::vector<void*> modules_;
  CuResult last_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int ordinal) { return std::make_unique<CudaDevice>(ordinal); }

}  // namespace hccl_py
