#include "common/epilogue.cuh"

// clamp(alpha * accumulator + beta * C + bias[n], -4, 4)
template <class Accumulator, class ElementC, class ElementBias>
struct BiasClamp : cute_gemm::LinearCombination<Accumulator, ElementC> {
  using Base = cute_gemm::LinearCombination<Accumulator, ElementC>;
  struct Params : Base::Params {
    cute_gemm::EpilogueTensor<ElementBias, cute::_0, cute::_1> bias;
  };

  cute_gemm::EpilogueTensor<ElementBias, cute::_0, cute::_1> bias;

  CUTE_DEVICE explicit BiasClamp(Params const& params) : Base(params), bias(params.bias) {}

  template <class Block>
  using Operands = typename cute_gemm::EpilogueTensor<ElementBias, cute::_0, cute::_1>::template Values<Block>;

  template <class Block>
  CUTE_DEVICE Operands<Block> load(cute_gemm::Coord const& at) const {
    return bias.template load<Block>(at);
  }

  template <int M, int N, int Threads>
  CUTE_DEVICE void prefetch(cute_gemm::Coord const&, int) const {}

  template <class Block>
  CUTE_DEVICE void store(cute_gemm::Coord const&, Operands<Block> const&) const {}

  CUTE_DEVICE ElementC clamped(Accumulator const& sum, ElementBias const& bias) const {
    Accumulator const biased = sum + Accumulator(bias);
    Accumulator const low = biased < Accumulator(-4) ? Accumulator(-4) : biased;
    return ElementC(low > Accumulator(4) ? Accumulator(4) : low);
  }
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, Operands const& bias, int i, int j) const {
    return clamped(this->combine(accumulator), bias(i, j));
  }
  template <class Operands>
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, ElementC const& c, Operands const& bias, int i,
                                  int j) const {
    return clamped(this->combine(accumulator, c), bias(i, j));
  }
};

