// SPDX-License-Identifier: Apache-2.0
// The exchange kernels' words for a CUDA device, PTX ISA 7.0, sm_70 and later (bfloat16 and float8: sm_90).
// Peer memory is written with plain and volatile stores, flags with release at system scope.
#pragma once
#include "exchange_types.hpp"

#define HP_DEV static __device__ __forceinline__
#define HP_APART static __device__ __noinline__
#define HP_ROLLED _Pragma("unroll 1")
#define HP_MEMBER __device__ __forceinline__

namespace hp {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef uint4 Vec;

constexpr u32 kLanes = 32;
constexpr u32 kSpinsBetweenLooks = 256;

// Where a thread stands.
struct Place {
  u32 block, blocks, thread, threads, lane;
  u32* shared;  // of the block

  HP_DEV Place make(u32* shared) {
    return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x, threadIdx.x % kLanes, shared};
  }
  HP_MEMBER void meet() const { __syncthreads(); }
};

HP_DEV void breathe() {}

HP_DEV u64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

HP_DEV void release(u32* p, u32 v) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
HP_DEV void set(u32* p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
HP_DEV u32 acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HP_DEV u32 relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
HP_DEV bool first_to_set(u32* p) { return atomicExch(p, 1u) == 0; }
HP_DEV u32 add(u32* p, u32 n) { return atomicAdd(p, n); }

HP_DEV void store_line(char* p, u32 a, u32 b, u32 flag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" ::"l"(p), "r"(a), "r"(b), "r"(flag) : "memory");
}
HP_DEV Vec load_line(const char* p) {
  Vec v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
HP_DEV void store_peer(char* p, const Vec& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
HP_DEV Vec load_slot(const char* p) {
  Vec v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
HP_DEV Vec load_vector(const char* p) {
  Vec v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
HP_DEV void store_vector(char* p, const Vec& v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// The bulk copies of sm_90: one lane moves a batch through shared memory, without registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define HP_BULK 1
#endif
#ifdef HP_BULK
HP_DEV u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }
HP_DEV void bulk_prepare(u64* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
HP_DEV void bulk_load(void* to, const char* from, u32 bytes, u64* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
HP_DEV void bulk_loaded(u64* barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
HP_DEV void bulk_store(char* to, const void* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
HP_DEV void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }  // shared memory may be overwritten
HP_DEV void bulk_stored() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }      // all is written
#endif

HP_DEV void sync_warp() { __syncwarp(); }
HP_DEV bool all_learn(u32 ok) {  // orders what lane 0 has acquired before what the others read next
  ok = __shfl_sync(~0u, ok, 0);
  __syncwarp();
  return ok != 0;
}
HP_DEV u32 from_first(u32 v) { return __shfl_sync(~0u, v, 0); }

// float16, bfloat16 and float8 to and from float, rounded to nearest even. Overflow of e4m3 is NaN, of e5m2 infinity.
HP_DEV float f16_to_float(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
HP_DEV u16 float_to_f16(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
HP_DEV float bf16_to_float(u16 h) { return __uint_as_float(u32(h) << 16); }
HP_DEV u16 float_to_bf16(float f) {
  u16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
HP_DEV float e4m3_to_float(u8 b) {
  u32 h;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(u16(b)));
  return f16_to_float(u16(h));
}
HP_DEV float e5m2_to_float(u8 b) { return f16_to_float(u16(u16(b) << 8)); }
HP_DEV u8 float_to_e4m3(float f) {
  if (!(fabsf(f) <= 464.0f)) return u8(__float_as_uint(f) >> 24 & 0x80) | 0x7F;
  u16 h;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.0f), "f"(f));
  return u8(h);
}
HP_DEV u8 float_to_e5m2(float f) {
  const u8 sign = u8(__float_as_uint(f) >> 24 & 0x80);
  if (f != f) return sign | 0x7F;
  if (fabsf(f) >= 61440.0f) return sign | 0x7C;
  u16 h;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(h) : "f"(0.0f), "f"(f));
  return u8(h);
}

}  // namespace hp
