// Epilogues: computations of a kernel on its accumulators.
//
// An epilogue is constructed from its `Params`, the parameters of the kernel's entry. A kernel calls
// `skips_products(k)` before its main loop. For a block of elements of its tile it calls `load`, which returns
// the operands' values; the epilogue is then a functor of an accumulator (or a `Pair` of them), the previous
// element of C if `reads_c()`, those operands, and the element's row and column in the block. It writes
// further results next to the operands, and `store` stores them; reductions end when the epilogue is
// destroyed. `update` does all of this for elements of one access.

#pragma once

#include <cute/config.hpp>
#include <cute/numeric/integral_constant.hpp>
#include <cutlass/array.h>

namespace cute_gemm {

// An element of C (M,N,L).
struct Coord {
  int m, n, batch;
};

// The coordinate of a kernel's row and column; with `kSwapAB` the kernel computes the transpose of C.
template <bool kSwapAB = false>
CUTE_DEVICE Coord coord(int row, int column, int batch) {
  if constexpr (kSwapAB) return {column, row, batch};
  return {row, column, batch};
}

// A block of M by N elements of C: element (i,j) is i * StepM and j * StepN from the first.
template <int M, int N, int StepM = 1, int StepN = 1>
struct Block {
  enum : int { kM = M, kN = N, kStepM = StepM, kStepN = StepN };
};

// The two columns of the product that an epilogue takes together: adjacent ones, or those of the first and of the
// second half. C then has half as many columns and is not read.
enum Pairs : int { kPairsNone, kPairsOfColumns, kPairsOfHalves };

// The accumulators of two columns.
template <class Accumulator>
struct Pair {
  Accumulator first, second;

  template <class T>
  CUTE_DEVICE static Pair of(T first, T second) {
    return {Accumulator(first), Accumulator(second)};
  }
};

// An operand of an epilogue: a tensor (M,N,L). Strides are `_0` in a missing mode, `_1` or dynamic. If Vector > 1,
// that many elements along the mode of stride 1 are aligned, and extents are multiples of it.
template <class Element, class StrideM = int64_t, class StrideN = int64_t, int Vector = 1>
struct EpilogueTensor {
  enum : bool { kHasM = !cute::is_constant<0, StrideM>::value, kHasN = !cute::is_constant<0, StrideN>::value };

  Element const* data;
  StrideM stride_m;
  StrideN stride_n;
  int64_t stride_l;
  int m, n;  // extents of C

  EpilogueTensor() = default;
  CUTE_DEVICE EpilogueTensor(Element const* data, int64_t stride_m, int64_t stride_n, int64_t stride_l, int m, int n)
      : data(data), stride_l(stride_l), m(m), n(n) {
    if constexpr (!cute::is_static<StrideM>::value) this->stride_m = stride_m;
    if constexpr (!cute::is_static<StrideN>::value) this->stride_n = stride_n;
  }

  // The values of a block: one row or one column if the tensor lacks the mode.
  template <class Block>
  struct Values {
    enum : int { kM = kHasM ? Block::kM : 1, kN = kHasN ? Block::kN : 1 };
    // Elements of an access: adjacent along the mode of stride 1.
    enum : bool {
      kAlongM = cute::is_constant<1, StrideM>::value && Block::kStepM == 1,
      kAlongN = cute::is_constant<1, StrideN>::value && Block::kStepN == 1 && !kAlongM
    };
    enum : int {
      kCount = kAlongM ? int(kM) : kAlongN ? int(kN) : 1,
      kVector = int(kCount) < Vector ? int(kCount) : Vector,
      kLoads = kM * kN / kVector,
      kNext = kAlongM ? int(kN) : 1  // distance of values of an access
    };
    using Access = cutlass::AlignedArray<Element, kVector>;
    Element values[kM * kN];

    CUTE_DEVICE Element const& operator()(int i, int j) const { return values[(kHasM ? i : 0) * kN + (kHasN ? j : 0)]; }
    CUTE_DEVICE Element& operator()(int i, int j) { return values[(kHasM ? i : 0) * kN + (kHasN ? j : 0)]; }
  };

  // Prefetches the lines of a tile of M by N elements into L2, with a given number of threads.
  template <int M, int N, int Threads>
  CUTE_DEVICE void prefetch(Coord const& at, int thread) const {
    constexpr bool kAlongM = cute::is_constant<1, StrideM>::value, kAlongN = cute::is_constant<1, StrideN>::value;
    if constexpr (kHasM && kHasN && (kAlongM || kAlongN)) {
      constexpr int kLine = 128 / sizeof(Element);
      constexpr int kLines = ((kAlongM ? M : N) + kLine - 1) / kLine, kAcross = kAlongM ? N : M;
      CUTE_UNROLL
      for (int i = 0; i < (kLines * kAcross + Threads - 1) / Threads; ++i) {
        int const number = i * Threads + thread, along = number % kLines * kLine, across = number / kLines;
        int const row = at.m + (kAlongM ? along : across), column = at.n + (kAlongM ? across : along);
        if (across < kAcross && row < m && column < n) {
          Element const* const line = data + row * stride_m + column * stride_n + at.batch * stride_l;
          asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(line)));
        }
      }
    }
  }

  // Calls a function for each access of a block whose first element is `at`, with its address, whether it lies in C,
  // and the place of its first value; its values are `kNext` apart.
  template <class Block, class Function>
  CUTE_DEVICE void for_each_access(Coord const& at, Function const& function) const {
    using Values = Values<Block>;
    CUTE_UNROLL
    for (int i = 0; i < Values::kM; i += Values::kAlongM ? int(Values::kVector) : 1) {
      CUTE_UNROLL
      for (int j = 0; j < Values::kN; j += Values::kAlongN ? int(Values::kVector) : 1) {
        int const row = at.m + i * Block::kStepM, column = at.n + j * Block::kStepN;
        Element const* const address = data + row * stride_m + column * stride_n + at.batch * stride_l;
        function(address, row < m && column < n, i * Values::kN + j);
      }
    }
  }

  // Loads a block whose first element is `at`; elements outside C are 0.
  template <class Block>
  CUTE_DEVICE Values<Block> load(Coord const& at) const {
    using Values = Values<Block>;
    Values found;
    for_each_access<Block>(at, [&](Element const* address, bool inside, int first) {
      typename Values::Access access;
      access.fill(Element(0));
      if (inside) access = *reinterpret_cast<typename Values::Access const*>(address);
      CUTE_UNROLL
      for (int e = 0; e < Values::kVector; ++e) found.values[first + e * Values::kNext] = access[e];
    });
    return found;
  }

  // Stores a block of a result, except for elements outside C.
  template <class Block>
  CUTE_DEVICE void store(Coord const& at, Values<Block> const& values) const {
    using Values = Values<Block>;
    for_each_access<Block>(at, [&](Element const* address, bool inside, int first) {
      typename Values::Access access;
      CUTE_UNROLL
      for (int e = 0; e < Values::kVector; ++e) access[e] = values.values[first + e * Values::kNext];
      if (inside) *reinterpret_cast<typename Values::Access*>(const_cast<Element*>(address)) = access;
    });
  }
};

// A result that is the greatest magnitude of all elements, at an address that was 0 before.
template <class Accumulator>
struct EpilogueAmax {
  Accumulator* data;
  int m, n;  // extents of C

  template <class Block>
  struct Values {
    Accumulator values[Block::kM * Block::kN];
    CUTE_DEVICE Accumulator& operator()(int i, int j) { return values[i * Block::kN + j]; }
  };

  // The bits of a magnitude, which have the order of the numbers, with NaN the greatest.
  using Bits = cute::conditional_t<sizeof(Accumulator) == 4, unsigned, unsigned long long>;

  template <class Block>
  CUTE_DEVICE void gather(Coord const& at, Values<Block> const& values, Bits& greatest) const {
    CUTE_UNROLL
    for (int i = 0; i < Block::kM; ++i) {
      CUTE_UNROLL
      for (int j = 0; j < Block::kN; ++j) {
        Accumulator const value = values.values[i * Block::kN + j];
        Bits bits;
        memcpy(&bits, &value, sizeof(bits));
        bits &= ~(Bits(1) << (8 * sizeof(Bits) - 1));
        if (at.m + i * Block::kStepM < m && at.n + j * Block::kStepN < n && bits > greatest) greatest = bits;
      }
    }
  }

  // The greatest magnitude of a thread, with one atomic per warp for the threads that arrive together.
  CUTE_DEVICE void finish(Bits greatest) const {
    if (greatest == 0) return;
    Bits* const to = reinterpret_cast<Bits*>(data);
    if constexpr (sizeof(Bits) == 4) {
      unsigned const together = __activemask();
      greatest = __reduce_max_sync(together, greatest);
      if (together >> threadIdx.x % 32 == 1) atomicMax(to, greatest);  // the last of them
    } else {
      atomicMax(to, greatest);
    }
  }
};

// C <- alpha * accumulator + beta * C, by BLAS's rules.
template <class Accumulator, class ElementC>
struct LinearCombination {
  using Sum = Accumulator;  // argument for an element of C: an accumulator or a Pair
  enum : int { kPairs = kPairsNone };

  // BLAS's two pointer modes: a value in device memory, if any, replaces the argument.
  struct Params {
    Accumulator alpha, beta;
    Accumulator const *alpha_ptr, *beta_ptr;
  };

  Accumulator alpha, beta;

  CUTE_DEVICE explicit LinearCombination(Params const& params)
      : alpha(params.alpha_ptr ? *params.alpha_ptr : params.alpha),
        beta(params.beta_ptr ? *params.beta_ptr : params.beta) {}

  // Whether there is nothing to multiply: A and B are not read if alpha is 0, and an empty sum is 0 for every
  // alpha.
  CUTE_DEVICE bool skips_products(int k) {
    if (k == 0 || alpha == Accumulator(0)) {
      alpha = Accumulator(0);
      return true;
    }
    return false;
  }

  // C is not read if beta is 0, so NaN does not propagate.
  CUTE_DEVICE bool reads_c() const { return beta != Accumulator(0); }

  // The linear combination before its conversion to C's type.
  CUTE_DEVICE Accumulator combine(Accumulator const& accumulator) const { return alpha * accumulator; }
  CUTE_DEVICE Accumulator combine(Accumulator const& accumulator, ElementC const& c) const {
    return alpha * accumulator + beta * Accumulator(c);
  }

  struct Operands {
    enum : int { kLoads = 0 };
  };
  template <class Block>
  CUTE_DEVICE Operands load(Coord const&) const { return {}; }
  // Starts to prefetch the operands of a tile, with a given number of threads.
  template <int M, int N, int Threads>
  CUTE_DEVICE void prefetch(Coord const&, int) const {}
  // Stores further results of a block.
  template <class Block>
  CUTE_DEVICE void store(Coord const&, Operands const&) const {}

  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, Operands const&, int, int) const {
    return ElementC(combine(accumulator));
  }
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, ElementC const& c, Operands const&, int, int) const {
    return ElementC(combine(accumulator, c));
  }
};

// N elements of C that are adjacent along M or along N. `load` loads the inputs of the epilogue, C if it reads it and
// other operands; `store` computes and stores, in one access each. A caller that loads several before it stores the
// first waits for memory once: the compiler cannot move a load of C ahead of a store to C.
template <int N, bool kAlongM, class Epilogue, class ElementC>
struct Update {
  using Vector = cutlass::AlignedArray<ElementC, N>;
  using Neighbours = Block<kAlongM ? N : 1, kAlongM ? 1 : N>;
  using Operands = decltype(cute::declval<Epilogue const&>().template load<Neighbours>(cute::declval<Coord>()));
  Vector old;
  Operands operands;

  CUTE_DEVICE void load(Epilogue const& epilogue, ElementC const* c, Coord const& at) {
    operands = epilogue.template load<Neighbours>(at);
    if (epilogue.reads_c()) old = *reinterpret_cast<Vector const*>(c);
  }

  template <class Accumulators>
  CUTE_DEVICE void store(Epilogue const& epilogue, ElementC* c, Accumulators const& accumulators, Coord const& at) {
    Vector results;
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) {
      int const m = kAlongM ? i : 0, n = kAlongM ? 0 : i;
      results[i] = epilogue.reads_c() ? epilogue(accumulators[i], old[i], operands, m, n)
                                      : epilogue(accumulators[i], operands, m, n);
    }
    *reinterpret_cast<Vector*>(c) = results;
    epilogue.template store<Neighbours>(at, operands);
  }
};

// Updates N elements of C; `at` is the first of them.
template <int N, bool kAlongM = true, class Epilogue, class ElementC, class Accumulators>
CUTE_DEVICE void update(Epilogue const& epilogue, ElementC* c, Accumulators const& accumulators, Coord const& at) {
  Update<N, kAlongM, Epilogue, ElementC> one;
  one.load(epilogue, c, at);
  one.store(epilogue, c, accumulators, at);
}

// The same for the first `valid` of N elements.
template <int N, bool kAlongM, class Epilogue, class ElementC, class Accumulators>
CUTE_DEVICE void update_valid(Epilogue const& epilogue, ElementC* c, Accumulators const& accumulators, Coord const& at,
                              int valid) {
  if (N > 1 && valid < N) {
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) {
      Coord const next{at.m + (kAlongM ? i : 0), at.n + (kAlongM ? 0 : i), at.batch};
      if (valid - i > 0) update<1>(epilogue, c + i, &accumulators[i], next);
    }
  } else if (valid > 0) {
    update<N, kAlongM>(epilogue, c, accumulators, at);
  }
}

// The same for one element without products.
template <class Epilogue, class ElementC>
CUTE_DEVICE void update_without_products(Epilogue const& epilogue, ElementC* c, Coord const& at) {
  typename Epilogue::Sum const zero[1] = {};
  update<1>(epilogue, c, zero, at);
}

}  // namespace cute_gemm
