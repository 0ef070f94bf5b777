// An operand whose rows begin at any element, on its way to shared memory.
//
// The idea: cp.async copies the aligned words of 16 bytes that cover a row, one more than the row fills.
// Once they have arrived, each thread reads a run of words from shared memory, shifts it in its registers
// to the start of the row, and writes it back in place. So the copies are as wide, as far ahead and as
// coalesced as those of an aligned operand, at the cost of a second trip through registers.
//
// A row is contiguous in memory: along k for a K-major operand, along M or N otherwise. In shared memory
// rows are kPitch elements apart, an odd number of words, so that words of adjacent rows lie in
// different banks without a swizzle.

#pragma once

#include "../common/copy.cuh"

namespace cute_gemm {

// 16 bytes, and the bytes of two of them from `shift` on.
struct alignas(16) Word {
  uint32_t part[4];
};

CUTE_DEVICE Word shifted(Word const& low, Word const& high, int shift) {
  uint32_t by_eight[6], by_four[5];
  uint32_t const both[8] = {low.part[0],  low.part[1],  low.part[2],  low.part[3],
                            high.part[0], high.part[1], high.part[2], high.part[3]};
  CUTE_UNROLL
  for (int i = 0; i < 6; ++i) by_eight[i] = shift & 8 ? both[i + 2] : both[i];
  CUTE_UNROLL
  for (int i = 0; i < 5; ++i) by_four[i] = shift & 4 ? by_eight[i + 1] : by_eight[i];
  Word out;
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    asm("shf.r.wrap.b32 %0, %1, %2, %3;\n"
        : "=r"(out.part[i])
        : "r"(by_four[i]), "r"(by_four[i + 1]), "r"(8 * shift));  // only 5 bits count
  }
  return out;
}

// The first `valid` bytes of a word, and zeros.
CUTE_DEVICE Word cut(Word word, int valid) {
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {
    int const bytes = valid - 4 * i;
    word.part[i] &= bytes >= 4 ? ~0u : bytes <= 0 ? 0u : (1u << 8 * bytes) - 1;
  }
  return word;
}

// One operand, gmem -> smem: the words of a tile in steps of a Copy, one more for each row, and the
// runs that threads shift into place in steps of a Place.
template <class Copy, class Place, class SmemLayout, class Element, bool kAlongK, int kThreads>
struct WordLoader {
  enum : int {
    kSize = sizeof(Element), kVector = Copy::kVector,
    kColumns = size<1>(SmemLayout{}),
    kAlong = kAlongK ? kColumns : size<0>(SmemLayout{}),   // elements of a row
    kAcross = kAlongK ? size<0>(SmemLayout{}) : kColumns,  // rows
    kStepAlong = kAlongK ? Copy::kColumns : Copy::kRows,
    kStepAcross = kAlongK ? Copy::kRows : Copy::kColumns,
    kSteps = kAcross / kStepAcross, kRepeats = kAlong / kStepAlong,
    kPitch = SmemLayout{}(kAlongK ? 1 : 0, kAlongK ? 0 : 1, 0),
    kStageBytes = kAcross * kPitch * kSize,
    kRun = Place::kValues / kVector,  // words that a thread shifts into place together
    kWords = kAlong / kVector, kMore = (kSteps + kWords - 1) / kWords,  // words of a row; ends of a thread's rows
    kLanes = kAlong / Place::kValues, kNext = 32 / kLanes,  // lanes of a row, and their distance
    kPlaceAcross = kAlongK ? Place::kRows : Place::kColumns, kPlaces = kAcross / kPlaceAcross
  };
  static_assert(kVector * kSize == 16 && int(Copy::kValues) == kVector);
  static_assert(kColumns * kSize % 16 == 0 && kAcross * kSize % 16 == 0, "rows begin alike in all tiles");

  int64_t stride, step;          // elements to the next row, to the next step
  Element const *begin, *end;    // the matrix
  Element const* source;         // the thread's first element of the next step
  uint32_t smem, target, place;  // addresses of the first words: to copy, and to shift into place
  int along;                     // the thread's first element in its rows
  int rows_left, rows;  // M or N from there to the matrix's end; negative for a tile left out
  int row_address, row_step;     // relevant bytes of the start of the next row to shift

  CUTE_DEVICE WordLoader(Element const* matrix, int corner, int extent, int depth, int64_t ld,
                         uint32_t smem_tile, int thread)
      : stride(ld), step(kStepAcross * ld) {
    typename Copy::At const first(thread, 0);
    along = kAlongK ? first.column : first.row;
    Element const* const tile = matrix + corner * (kAlongK ? ld : 1);
    begin = matrix;
    end = matrix + (kAlongK ? (extent - 1) * ld + depth : (depth - 1) * ld + extent);
    source = tile + (kAlongK ? first.row : first.column) * ld + along;
    rows_left = extent - corner - first.row;
    smem = smem_tile + kSize * SmemLayout{}(first.row, first.column, 0);
    typename Place::At const run(thread, 0);
    place = smem_tile + kSize * SmemLayout{}(run.row, run.column, 0);
    row_address = int(reinterpret_cast<uint64_t>(tile + (kAlongK ? run.row : run.column) * ld));
    row_step = int(kPlaceAcross * kSize * ld);
  }

  CUTE_DEVICE static int shift_of(Element const* row) {
    return int(reinterpret_cast<uint64_t>(row)) & 15;
  }

  CUTE_DEVICE static void const* word_of(Element const* element) {
    return reinterpret_cast<void const*>(reinterpret_cast<uint64_t>(element) & ~uint64_t(15));
  }

  // Whether the word that covers `element`, number `at` of its row, has any of the row's first `limit`.
  CUTE_DEVICE static bool has_any(Element const* element, int at, int limit) {
    return at * kSize - shift_of(element) < limit * kSize;
  }

  // The tile to load is load number `number`, as in TileLoader.
  CUTE_DEVICE void advance(int number, int pipe, int k_tiles) {
    target = smem + pipe * kStageBytes;
    rows = number < k_tiles ? rows_left : -int(kAlong + kVector);
  }

  // Words may cross the matrix's ends in the last two tiles along k and in the first.
  CUTE_DEVICE void fetch(int number, int pipe, int k_tiles, int tail, int ends) {
    advance(number, pipe, k_tiles);
    if (number > ends) {
      load<false>(0, 1);
    } else if (number < k_tiles) {
      load_carefully(number < ends ? k_tiles - 1 - number : 0, number == 0 ? tail : int(kColumns));
    }
    if (number == ends) source += kColumns * (kAlongK ? 1 : stride);
  }

  // Issues part `part` of `parts` of the tile's copies: of all words with elements of the tile.
  template <bool>
  CUTE_DEVICE void load(int part, int parts) {
    if (part == 0) {
      CUTE_UNROLL
      for (int i = 0; i < kMore; ++i) copy_after_row(i);
    }
    CUTE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      if (i * parts / kSteps != part) continue;
      CUTE_UNROLL
      for (int j = 0; j < kRepeats; ++j) {
        Element const* const from = source + j * kStepAlong;
        bool const some = kAlongK ? i * kStepAcross < rows : has_any(from, j * kStepAlong, rows);
        copy_async_if<16>(target + kSize * (i * kStepAcross * kPitch + j * kStepAlong), word_of(from), some);
      }
      source += step;
      asm("" : "+l"(source));  // as in TileLoader
    }
    // Along the rows the next tile follows directly; across them it begins where the last step ends.
    if (kAlongK && part == parts - 1) source += kColumns - kSteps * step;
  }

  // The same value, opaque to compilers: they keep nothing that depends on it in registers through the
  // k loop.
  CUTE_DEVICE static int afresh(int value) {
    asm volatile("" : "+r"(value));
    return value;
  }

  // Copies the word after a row: the first lane of a row copies that of its first step, and so on.
  CUTE_DEVICE void copy_after_row(int turn) const {
    int const lane = afresh(along), column = kAlong - lane, steps = lane / kVector + turn * kWords;
    Element const* const from = source + steps * step + column;
    bool const some = steps < kSteps && (kAlongK ? steps * kStepAcross < rows && shift_of(from) > 0
                                                 : has_any(from, column, min(rows, column)));
    copy_async_if<16>(target + kSize * (steps * (kStepAcross * kPitch) + column), word_of(from), some);
  }

  // The same for a whole tile, `tile` tiles from the first one, of which `columns` columns are in the
  // matrix. Words that cross the matrix's ends are copied element by element.
  CUTE_DEVICE void load_carefully(int tile, int columns) const {
    Element const* const first = source + tile * (kColumns * (kAlongK ? 1 : stride));
    typename Copy::At const at(threadIdx.x, 0);
    CUTE_NO_UNROLL
    for (int i = 0; i < kSteps * kRepeats + kMore; ++i) {
      bool const after_row = i >= kSteps * kRepeats;
      int const steps = after_row ? along / kVector + (i - kSteps * kRepeats) * kWords : i / kRepeats;
      int const further = after_row ? kAlong - along : i % kRepeats * kStepAlong;
      if (steps >= kSteps) continue;
      int const row = steps * kStepAcross, rest = columns - at.column;
      bool const inside = row < (kAlongK ? rows_left : rest);
      Element const* const element = first + row * stride + further;
      if (inside && has_any(element, further, min(kAlongK ? rest : rows_left, kAlong - along))) {
        copy_word(target + kSize * (row * kPitch + further), static_cast<Element const*>(word_of(element)));
      }
    }
  }

  CUTE_DEVICE void copy_word(uint32_t to, Element const* word) const {
    if (word >= begin && word + kVector <= end) {
      copy_async_if<16>(to, word, true);
      return;
    }
    CUTE_NO_UNROLL
    for (int i = 0; i < kVector; ++i) {
      if (word + i >= begin && word + i < end) shared_pointer<Element>(to)[i] = word[i];
    }
  }

  // Reads run number `i` of a loaded tile, and the word after it.
  CUTE_DEVICE void take(int pipe, int i, Word* words) const {
    Word const* const run = run_of(pipe, i);
    CUTE_UNROLL
    for (int j = 0; j < kRun; ++j) words[j] = run[j];
    if constexpr (kLanes > 1) {  // a neighbour may change the next run's first word
      CUTE_UNROLL
      for (int j = 0; j < 4; ++j) {
        words[kRun].part[j] = __shfl_down_sync(0xffffffff, words[0].part[j], kNext);
      }
    }
    if (kLanes == 1 || threadIdx.x % 32 >= 32 - kNext) words[kRun] = run[kRun];
  }

  // Writes it into place. kCut: `columns` columns of the tile are in the matrix, and elements outside
  // become zeros.
  template <bool kCut>
  CUTE_DEVICE void put(int pipe, int i, Word const* words, int columns) {
    Word* const run = run_of(pipe, i);
    int const shift = row_address & 15;
    row_address += row_step;  // all steps of a tile together are a multiple of 16
    CUTE_UNROLL
    for (int j = 0; j < kRun; ++j) {
      Word word = shifted(words[j], words[j + 1], shift);
      if constexpr (kCut) {
        typename Place::At const at(threadIdx.x, j * kVector);
        int const left = columns - at.column;
        word = cut(word, kAlongK ? left * kSize : left > i * kPlaceAcross ? 16 : 0);
      }
      run[j] = word;
    }
  }

  CUTE_DEVICE Word* run_of(int pipe, int i) const {
    return shared_pointer<Word>(place + pipe * kStageBytes + i * (kPlaceAcross * kPitch * kSize));
  }
};

}  // namespace cute_gemm
