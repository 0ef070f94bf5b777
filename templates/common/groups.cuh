// Groups of a grouped GEMM: parts of M, N or K one behind the other, whose ends lie in device memory.

#pragma once

#include "layout.cuh"

namespace cute_gemm {

// The mode of a kernel's GEMM along which the groups lie.
enum Ragged : int { kRaggedNone, kRaggedM, kRaggedN, kRaggedK };

// Group g begins where g - 1 ends, the first at 0. Whatever the ends are, no group is less than empty, or ends
// beyond the extent of all.
struct GroupEnds {
  int const* ends;
  int groups, total;

  CUTE_DEVICE int begin(int group) const { return group > 0 ? min(max(ends[group - 1], 0), total) : 0; }
  CUTE_DEVICE int end(int group, int begin) const { return min(max(ends[group], begin), total); }
};

}  // namespace cute_gemm
