// Sums of a tile whose k tiles several CTAs have, on their way through global memory (stream-K).

#pragma once

#include "multiply.cuh"
#include "store.cuh"

namespace cute_gemm {

// A CTA has a place for the sums of one tile, by groups, each thread's vectors side by side with those of
// the others; and a flag for each group, which says `token` while sums lie there. What the memory held
// before does not matter: a token is drawn for the launch, and is taken away with the sums.
template <class Config, class Sums>
struct Partial {
  enum : int {
    kVectors = Sums::kMmas * Sums::kValues / 4, kConsumers = Config::kConsumers,
    kPlace = 128 * kVectors  // vectors of a group
  };

  float4* sums;
  uint64_t* flags;
  uint64_t token;
  int group, thread;

  CUTE_DEVICE Partial(void* scratch, uint64_t token, int group, int thread)
      : sums(static_cast<float4*>(scratch) + group * kPlace + thread), token(token), group(group),
        thread(thread) {
    int64_t const places = int64_t(gridDim.x) * kConsumers * kPlace;
    flags = reinterpret_cast<uint64_t*>(static_cast<float4*>(scratch) + places) + group;
  }

  CUTE_DEVICE float4* place(int cta) const { return sums + int64_t(cta) * kConsumers * kPlace; }

  CUTE_DEVICE void set(int cta, uint64_t value) const {
    asm volatile("st.release.gpu.global.u64 [%0], %1;\n" ::"l"(flags + cta * kConsumers), "l"(value)
                 : "memory");
  }

  // Leaves the sums for the CTA that finishes the tile.
  CUTE_DEVICE void give(Sums const& mine) const {
    auto const* const values = reinterpret_cast<float const*>(mine.values);
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      place(blockIdx.x)[v * 128] =
          make_float4(values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3]);
    }
    group_sync(group);
    if (thread == 0) set(blockIdx.x, token);
  }

  // Adds what another CTA has left, once it is there.
  CUTE_DEVICE void add(Sums& mine, int cta) const {
    if (thread == 0) {
      uint64_t found;
      do {
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];\n"
                     : "=l"(found) : "l"(flags + cta * kConsumers) : "memory");
      } while (found != token);
      set(cta, 0);
    }
    group_sync(group);
    auto* const values = reinterpret_cast<float*>(mine.values);
    CUTE_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float4 const other = __ldcg(place(cta) + v * 128);
      values[4 * v] += other.x;
      values[4 * v + 1] += other.y;
      values[4 * v + 2] += other.z;
      values[4 * v + 3] += other.w;
    }
  }
};

}  // namespace cute_gemm
