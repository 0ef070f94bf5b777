// Epilogues: what a kernel does with its accumulators.
//
// An epilogue is constructed from its `Params`, the parameters of the kernel's entry. It is a functor of an
// accumulator, the element of C that was there if `reads_c()`, and the element's coordinate. A kernel asks
// `skips_products(k)` before its main loop, and calls `update` for the elements of its tile.

#pragma once

#include <cute/config.hpp>
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

// An operand of an epilogue: a tensor (M,N,L), whose stride is 0 in a mode that it lacks. Coordinates may lie
// outside of C (m,n), where nothing is loaded.
template <class Element>
struct EpilogueTensor {
  Element const* data;
  int64_t stride_m, stride_n, stride_l;
  int m, n;

  CUTE_DEVICE Element operator()(Coord const& at) const {
    if (at.m >= m || at.n >= n) return Element(0);
    return data[at.m * stride_m + at.n * stride_n + at.batch * stride_l];
  }
};

// C <- alpha * accumulator + beta * C, by BLAS's rules.
template <class Accumulator, class ElementC>
struct LinearCombination {
  // BLAS's two pointer modes: a value in device memory, if there is one, replaces the argument.
  struct Params {
    Accumulator alpha, beta;
    Accumulator const *alpha_ptr, *beta_ptr;
  };

  Accumulator alpha, beta;

  CUTE_DEVICE explicit LinearCombination(Params const& params)
      : alpha(params.alpha_ptr ? *params.alpha_ptr : params.alpha),
        beta(params.beta_ptr ? *params.beta_ptr : params.beta) {}

  // Whether there is nothing to multiply: A and B are not read when alpha is 0, and an empty sum is 0 whatever
  // alpha is.
  CUTE_DEVICE bool skips_products(int k) {
    if (k == 0 || alpha == Accumulator(0)) {
      alpha = Accumulator(0);
      return true;
    }
    return false;
  }

  // C is not read when beta is 0: NaN there does not propagate.
  CUTE_DEVICE bool reads_c() const { return beta != Accumulator(0); }

  // The linear combination before its conversion to C's type.
  CUTE_DEVICE Accumulator combine(Accumulator const& accumulator) const { return alpha * accumulator; }
  CUTE_DEVICE Accumulator combine(Accumulator const& accumulator, ElementC const& c) const {
    return alpha * accumulator + beta * Accumulator(c);
  }

  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, Coord const&) const {
    return ElementC(combine(accumulator));
  }
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, ElementC const& c, Coord const&) const {
    return ElementC(combine(accumulator, c));
  }
};

// Updates N elements of C that are adjacent along M, or else along N, in one access each way; `at` is the
// first of them.
template <int N, bool kAlongM = true, class Epilogue, class ElementC, class Accumulators>
CUTE_DEVICE void update(Epilogue const& epilogue, ElementC* c, Accumulators const& accumulators, Coord const& at) {
  using Vector = cutlass::AlignedArray<ElementC, N>;
  auto const coord_of = [&](int i) { return Coord{at.m + (kAlongM ? i : 0), at.n + (kAlongM ? 0 : i), at.batch}; };
  Vector results;
  if (!epilogue.reads_c()) {
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) results[i] = epilogue(accumulators[i], coord_of(i));
  } else {
    Vector const old = *reinterpret_cast<Vector const*>(c);
    CUTE_UNROLL
    for (int i = 0; i < N; ++i) results[i] = epilogue(accumulators[i], old[i], coord_of(i));
  }
  *reinterpret_cast<Vector*>(c) = results;
}

// The same of one element without products.
template <class Accumulator, class Epilogue, class ElementC>
CUTE_DEVICE void update_without_products(Epilogue const& epilogue, ElementC* c, Coord const& at) {
  Accumulator const zero[1] = {Accumulator(0)};
  update<1>(epilogue, c, zero, at);
}

}  // namespace cute_gemm
