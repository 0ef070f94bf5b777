#include "common/epilogue.cuh"

// clamp(alpha * accumulator + beta * C + bias[n], -4, 4)
template <class Accumulator, class ElementC, class ElementBias>
struct BiasClamp : cute_gemm::LinearCombination<Accumulator, ElementC> {
  using Base = cute_gemm::LinearCombination<Accumulator, ElementC>;
  struct Params : Base::Params {
    cute_gemm::EpilogueTensor<ElementBias> bias;
  };

  cute_gemm::EpilogueTensor<ElementBias> bias;

  CUTE_DEVICE explicit BiasClamp(Params const& params) : Base(params), bias(params.bias) {}

  CUTE_DEVICE ElementC clamped(Accumulator const& sum, cute_gemm::Coord const& at) const {
    Accumulator const biased = sum + Accumulator(bias(at));
    Accumulator const low = biased < Accumulator(-4) ? Accumulator(-4) : biased;
    return ElementC(low > Accumulator(4) ? Accumulator(4) : low);
  }
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, cute_gemm::Coord const& at) const {
    return clamped(this->combine(accumulator), at);
  }
  CUTE_DEVICE ElementC operator()(Accumulator const& accumulator, ElementC const& c,
                                  cute_gemm::Coord const& at) const {
    return clamped(this->combine(accumulator, c), at);
  }
};

