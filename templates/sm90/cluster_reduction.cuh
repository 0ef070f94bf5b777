// Split-K over the CTAs of a cluster: each has partial sums of a tile of C. Each CTA reduces those of a part of the
// columns, which it reads from the shared memory of all (distributed shared memory), and stores them.

#pragma once

#include "mma.cuh"

namespace cute_gemm {

// The type of wgmma's registers.
template <class Config>
using Register = cute::remove_cvref_t<decltype(cute::declval<typename Config::Mma::CRegisters&>()[0])>;

// The config of what a CTA stores of a tile: as many rows, and a part of the columns.
template <class Config>
struct PartOfColumns : Config {
  enum : int { kParts = Config::Cluster::kK };
  using Whole = typename Config::CtaTiler;
  using CtaTiler = Shape<Int<size<0>(Whole{})>, Int<size<1>(Whole{}) / kParts>, Int<size<2>(Whole{})>>;
  struct Mma {
    using CRegisters = Register<Config>[extent<typename Config::Mma::CRegisters>::value / kParts];
  };
};

// The config of the epilogue.
template <class Config>
using EpilogueConfig = cute::conditional_t<int(Config::Cluster::kK) == 1, Config, PartOfColumns<Config>>;

// The k tiles of a tile of C that a CTA multiplies.
struct KTiles {
  int first, count;
};

template <class Cluster>
CUTE_DEVICE KTiles k_tiles_of_cta(int k_tiles, int rank) {
  if constexpr (int(Cluster::kK) == 1) return {0, k_tiles};
  int const k = Cluster::k(rank), first = k_tiles * k / Cluster::kK;
  return {first, k_tiles * (k + 1) / Cluster::kK - first};
}

// The tile whose first column is the first that a CTA stores of its group's.
template <class Config, class Tile>
CUTE_DEVICE Tile stored_of(Tile tile, int group, int rank) {
  if constexpr (int(Config::Cluster::kK) > 1) {
    using Part = Accumulators<PartOfColumns<Config>>;
    tile.column += Accumulators<Config>::column(group) - Part::column(group) + Config::Cluster::k(rank) * Part::kColumns;
  }
  return tile;
}

template <class Config>
struct ClusterReduction {
  using Cluster = typename Config::Cluster;
  using All = Accumulators<Config>;
  using Part = Accumulators<PartOfColumns<Config>>;
  using Vector = cutlass::AlignedArray<Register<Config>, 4>;
  enum : int {
    kParts = Cluster::kK, kThreads = 128 * Config::kConsumers, kVectors = Part::kValues / 4,
    kBytes = kParts * Part::kBlocks * kVectors * kThreads * sizeof(Vector)
  };

  static_assert(Part::kValues % 4 == 0);

  // Consumers: stores a CTA's partial sums to where its stages were; without `all` zeros, if it has no part of K.
  template <class Memory>
  CUTE_DEVICE static void store_partial(Memory& memory, All const* all) {
    static_assert(kBytes <= Memory::kStages * int(Memory::kStageBytes));
    // All groups have multiplied what the stages had.
    asm volatile("bar.sync 6, %0;\n" ::"n"(int(kThreads)) : "memory");
    CUTE_UNROLL
    for (int m = 0; m < Part::kBlocks; ++m) {
      CUTE_UNROLL
      for (int i = 0; i < kParts * kVectors; ++i) {
        Vector values;
        CUTE_UNROLL
        for (int j = 0; j < 4; ++j) values[j] = all ? all->values[m][4 * i + j] : Register<Config>(0);
        first(memory)[place(i / kVectors, m, i % kVectors)] = values;
      }
    }
  }

  // Consumers: adds the partial sums of this CTA's columns, in order of K. Then they call `wait`: until all CTAs have
  // read them the partial sums are where the stages were.
  template <class Memory>
  CUTE_DEVICE static void reduce(Memory& memory, Part& sums, int rank) {
    cluster_sync();
    uint32_t const here = cute::cast_smem_ptr_to_uint(first(memory) + place(Cluster::k(rank), 0, 0));
    sums.clear();
    CUTE_NO_UNROLL
    for (int k = 0; k < kParts; ++k) {
      uint32_t const there = address_in(Cluster::along_k(rank, k), here);
      CUTE_UNROLL
      for (int m = 0; m < Part::kBlocks; ++m) {
        CUTE_UNROLL
        for (int i = 0; i < kVectors; ++i) {
          Vector const values = load(there + (m * kVectors + i) * kThreads * int(sizeof(Vector)));
          CUTE_UNROLL
          for (int j = 0; j < 4; ++j) sums.values[m][4 * i + j] += values[j];
        }
      }
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");  // TMA writes behind what was read
    cluster_arrive();
  }
  CUTE_DEVICE static void wait() {
    __syncwarp();  // lanes may have stored elements one by one
    cluster_wait();
  }

  // Producers: the same barriers, before they load the next tile.
  CUTE_DEVICE static void producer_wait() {
    cluster_sync();
    cluster_sync();
  }

 private:
  template <class Memory>
  CUTE_DEVICE static Vector* first(Memory& memory) { return reinterpret_cast<Vector*>(memory.a[0]); }

  // Of a thread's vector i of block m and a part of the columns.
  CUTE_DEVICE static int place(int part, int m, int i) {
    return ((part * Part::kBlocks + m) * kVectors + i) * kThreads + threadIdx.x;
  }

  // The address of the same place in another CTA of the cluster.
  CUTE_DEVICE static uint32_t address_in(int rank, uint32_t here) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(here), "r"(rank));
    return there;
  }

  CUTE_DEVICE static Vector load(uint32_t from) {
    alignas(16) uint32_t words[4];
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3]) : "r"(from));
    return reinterpret_cast<Vector const&>(words);
  }
};

}  // namespace cute_gemm
