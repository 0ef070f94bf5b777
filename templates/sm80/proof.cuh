// What a proof of a tensor core kernel asks of C++ CuTe, in addition to the kernel's Config.

#pragma once

#include <cute/tensor.hpp>

#include "../common/proof.cuh"

namespace cute_gemm {

// The values of each thread of a tiled MMA, and their registers.
template <class Config, class TiledMma_>
struct Partitions {
  using TiledMma = TiledMma_;
  using Element = typename Config::Element;
  using CtaTiler = typename Config::CtaTiler;

  template <class Copy, class Value>
  using Atom = Copy_Atom<typename Copy::Instruction, Value>;
  using SmemCopyA = decltype(make_tiled_copy_A(Atom<typename Config::SmemCopyA, Element>{}, TiledMma{}));
  using SmemCopyB = decltype(make_tiled_copy_B(Atom<typename Config::SmemCopyB, Element>{}, TiledMma{}));
  using EpilogueStage = decltype(make_tiled_copy_C(
      Atom<typename Config::EpilogueStage, typename Config::Accumulator>{}, TiledMma{}));

  using PartA = decltype(make_tensor<typename TiledMma::FrgTypeA>(
      partition_shape_A(TiledMma{}, select<0, 2>(CtaTiler{}))));  // (MMA,MMA_M,MMA_K)
  using PartB = decltype(make_tensor<typename TiledMma::FrgTypeB>(
      partition_shape_B(TiledMma{}, select<1, 2>(CtaTiler{}))));  // (MMA,MMA_N,MMA_K)
  using PartC = decltype(partition_fragment_C(TiledMma{}, select<0, 1>(CtaTiler{})));
  using FragmentA = decltype(layout(SmemCopyA{}.get_slice(0).retile_D(declval<PartA&>())));
  using FragmentB = decltype(layout(SmemCopyB{}.get_slice(0).retile_D(declval<PartB&>())));
  using FragmentC = decltype(layout(EpilogueStage{}.get_slice(0).retile_S(declval<PartC&>())));
};

}  // namespace cute_gemm
