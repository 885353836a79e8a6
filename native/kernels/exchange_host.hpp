// SPDX-License-Identifier: Apache-2.0
// The exchange kernels' words for the host: a warp has one lane and is a thread, memory is ordinary memory. It serves
// the tests of the protocols where there is no GPU; float16 and float8 are left to the device.
#pragma once
#include <barrier>
#include <chrono>
#include <thread>

#include "exchange_types.hpp"

#define HP_DEV [[maybe_unused]] static inline
#define HP_APART [[maybe_unused]] static
#define HP_ROLLED
#define HP_MEMBER inline

namespace hp {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
struct alignas(16) Vec {
  u32 x, y, z, w;
};

constexpr u32 kLanes = 1;
constexpr u32 kSpinsBetweenLooks = 16;

struct Place {
  u32 block, blocks, thread, threads, lane;
  u32* shared;
  std::barrier<>* meeting;

  void meet() const { meeting->arrive_and_wait(); }
};

HP_DEV void breathe() { std::this_thread::yield(); }
HP_DEV u64 clock_ns() {
  return u64(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// Stronger than on the device, where a credit needs no release: that is an argument about hardware, see `take`.
HP_DEV void release(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
HP_DEV void set(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
HP_DEV u32 acquire(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
HP_DEV u32 relaxed(const u32* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
HP_DEV bool first_to_set(u32* p) { return __atomic_exchange_n(p, 1u, __ATOMIC_ACQ_REL) == 0; }
HP_DEV u32 add(u32* p, u32 n) { return __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL); }

HP_DEV void store_line(char* p, u32 a, u32 b, u32 flag) {
  u64* halves = reinterpret_cast<u64*>(p);
  __atomic_store_n(halves, u64(a) | u64(flag) << 32, __ATOMIC_RELEASE);
  __atomic_store_n(halves + 1, u64(b) | u64(flag) << 32, __ATOMIC_RELEASE);
}
HP_DEV Vec load_line(const char* p) {
  const u64* halves = reinterpret_cast<const u64*>(p);
  const u64 a = __atomic_load_n(halves, __ATOMIC_ACQUIRE), b = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
  return {u32(a), u32(a >> 32), u32(b), u32(b >> 32)};
}
HP_DEV void store_peer(char* p, const Vec& v) { *reinterpret_cast<Vec*>(p) = v; }
HP_DEV Vec load_slot(const char* p) { return *reinterpret_cast<const Vec*>(p); }
HP_DEV Vec load_vector(const char* p) { return *reinterpret_cast<const Vec*>(p); }
HP_DEV void store_vector(char* p, const Vec& v) { *reinterpret_cast<Vec*>(p) = v; }

HP_DEV void sync_warp() {}
HP_DEV bool all_learn(u32 ok) { return ok != 0; }
HP_DEV u32 from_first(u32 v) { return v; }

HP_DEV float bf16_to_float(u16 h) {
  const u32 bits = u32(h) << 16;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
HP_DEV u16 float_to_bf16(float f) {
  u32 bits;
  __builtin_memcpy(&bits, &f, 4);
  if (f != f) return 0x7FFF;
  return u16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float f16_to_float(u16);
u16 float_to_f16(float);
float e4m3_to_float(u8);
u8 float_to_e4m3(float);
float e5m2_to_float(u8);
u8 float_to_e5m2(float);

}  // namespace hp
