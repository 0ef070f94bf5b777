// What CUTLASS's iterators touch in shared memory, told by what they move: memory is filled with the
// numbers of its words, or with -1 under stores of numbered fragments. Included after an emitted unit,
// which defines Gemm; kWord is the bytes of a numbered word, kSection the words of a part of `out`.
#pragma once

namespace trace {

using Mma = Gemm::Mma;
using Operator = Mma::Operator;
using Epilogue = Gemm::Epilogue;
using Storage = Gemm::SharedStorage;
using Word = cutlass::platform::conditional<kWord == 2, uint16_t, uint32_t>::type;

template <class Number>
CUTLASS_DEVICE void number(void* data, int bytes, int thread, int first, int step) {
  for (int i = thread; i < bytes / int(sizeof(Number)); i += Gemm::kThreadCount) {
    static_cast<Number*>(data)[i] = Number(first + step * i);
  }
}

template <class Number, class Fragment>
CUTLASS_DEVICE void write(int* out, Fragment const& fragment) {
  for (int i = 0; i < int(sizeof(Fragment) / sizeof(Number)); ++i) {
    out[i] = int(reinterpret_cast<Number const*>(&fragment)[i]);
  }
}

/// A fragment whose words have numbers of their own in the CTA.
template <class Fragment>
CUTLASS_DEVICE Fragment numbered(int thread) {
  Fragment fragment;
  int const words = sizeof(Fragment) / 4;
  for (int i = 0; i < words; ++i) reinterpret_cast<int*>(&fragment)[i] = thread * words + i;
  return fragment;
}

/// Stores of a k-tile: the addresses of cp.async, or whole fragments in the pipeline of two stages.
template <class Global, class Iterator, class Reference>
CUTLASS_DEVICE void store(Reference reference, char const* base, int thread, int* out) {
  Iterator iterator(reference, thread);
  if constexpr (kStages > 2) {
    int const vectors = Global::ThreadMap::Iterations::kCount;
    iterator.set_iteration_index(0);
    for (int i = 0; i < vectors; ++i) {
      auto* vector = reinterpret_cast<typename Global::AccessType*>(iterator.get());
      for (int v = 0; v < Global::kAccessesPerVector; ++v) {
        out[(thread * vectors + i) * Global::kAccessesPerVector + v] =
            int(reinterpret_cast<char const*>(vector + v) - base);
      }
      ++iterator;
    }
  } else {
    iterator.store(numbered<typename Iterator::Fragment>(thread));
  }
}

/// Fragments of a k-tile, group by group.
template <class Fragment, class Iterator>
CUTLASS_DEVICE void load(Iterator iterator, int thread, int* out) {
  int const words = sizeof(Fragment) / kWord;
  for (int group = 0; group < Mma::Base::kWarpGemmIterations; ++group) {
    Fragment fragment;
    iterator.set_kgroup_index(group);
    iterator.load(fragment);
    ++iterator;
    write<Word>(out + (thread * Mma::Base::kWarpGemmIterations + group) * words, fragment);
  }
}

int const kSteps = 9;

/// One step of the trace; all threads are done with one before any begins the next.
template <int Step>
CUTLASS_DEVICE void step(char* space, int thread, int* out) {
  auto& storage = *reinterpret_cast<Storage*>(space);
  auto& mainloop = storage.main_loop;
  auto& staging = storage.epilogue;
  char* const a = reinterpret_cast<char*>(mainloop.operand_A.data());
  char* const b = reinterpret_cast<char*>(mainloop.operand_B.data());
  int const lane = thread % 32, warp = thread / 32;
  int const warp_m = warp % Mma::Base::WarpCount::kM, warp_n = warp / Mma::Base::WarpCount::kM;

  if constexpr (Step == 0 || Step == 5) {
    number<int>(space, sizeof(Storage), thread, -1, 0);
  } else if constexpr (Step == 1) {
    store<Mma::IteratorA, Mma::SmemIteratorA>(mainloop.operand_A_ref(), a, thread, out);
    store<Mma::IteratorB, Mma::SmemIteratorB>(mainloop.operand_B_ref(), b, thread, out + kSection);
  } else if constexpr (Step == 2) {
    if constexpr (kStages == 2) {
      for (int i = thread; i < int(sizeof(mainloop.operand_A)) / 4; i += Gemm::kThreadCount) {
        out[i] = reinterpret_cast<int*>(a)[i];
      }
      for (int i = thread; i < int(sizeof(mainloop.operand_B)) / 4; i += Gemm::kThreadCount) {
        out[kSection + i] = reinterpret_cast<int*>(b)[i];
      }
    }
  } else if constexpr (Step == 3) {
    number<Word>(a, sizeof(mainloop.operand_A), thread, 0, 1);
    number<Word>(b, sizeof(mainloop.operand_B), thread, 0, 1);
  } else if constexpr (Step == 4) {
    typename Operator::IteratorA iterator_a(mainloop.operand_A_ref(), lane);
    typename Operator::IteratorB iterator_b(mainloop.operand_B_ref(), lane);
    iterator_a.add_tile_offset({warp_m, 0});
    iterator_b.add_tile_offset({0, warp_n});
    load<typename Operator::FragmentA>(iterator_a, thread, out + 2 * kSection);
    load<typename Operator::FragmentB>(iterator_b, thread, out + 3 * kSection);
  } else if constexpr (Step == 6) {
    typename Epilogue::WarpTileIterator iterator(staging.reference(), lane);
    iterator.add_tile_offset({warp_m, warp_n});
    iterator.store(numbered<typename Epilogue::WarpTileIterator::Fragment>(thread));
  } else if constexpr (Step == 7) {
    for (int i = thread; i < int(sizeof(staging)) / 4; i += Gemm::kThreadCount) {
      out[4 * kSection + i] = reinterpret_cast<int*>(&staging)[i];
      reinterpret_cast<int*>(&staging)[i] = i;
    }
  } else if constexpr (Step == 8) {
    typename Epilogue::SharedLoadIterator iterator(staging.reference(), thread);
    typename Epilogue::SharedLoadIterator::Fragment fragment;
    iterator.load(fragment);
    write<int>(out + 5 * kSection + thread * int(sizeof(fragment) / 4), fragment);
  }
}

template <int Step = 0>
CUTLASS_DEVICE void steps(char* space, int thread, int* out) {
  if constexpr (Step < kSteps) {
    step<Step>(space, thread, out);
    __syncthreads();
    steps<Step + 1>(space, thread, out);
  }
}

}  // namespace trace
