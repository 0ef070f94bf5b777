// Five planted faults, and with FIXED their fixed twins: CTAs of 64 threads, an element each.

__device__ int element() { return blockIdx.x * blockDim.x + threadIdx.x; }

// The last thread of all reads the element behind the end.
extern "C" __global__ void out_of_bounds(float const* in, float* out) {
  int const i = element(), n = gridDim.x * blockDim.x;
  out[i] = !FIXED || i + 1 < n ? in[i + 1] : 0.0f;
}

// The element of the other warp, without a barrier between.
extern "C" __global__ void race(float const* in, float* out) {
  __shared__ float volatile held[64];
  held[threadIdx.x] = in[element()];
  if (FIXED) __syncthreads();
  out[element()] = held[threadIdx.x ^ 32];
}

// A barrier, but nobody has waited for the copies.
extern "C" __global__ void missing_wait(float const* in, float* out) {
  __shared__ float volatile held[64];
  unsigned const place = __cvta_generic_to_shared(const_cast<float*>(held) + threadIdx.x);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place), "l"(in + element()));
  asm volatile("cp.async.commit_group;");
  if (FIXED) asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  out[element()] = held[threadIdx.x ^ 32];
}

// Of 64 elements 48 are written, and all are read.
extern "C" __global__ void uninitialised(float const* in, float* out) {
  __shared__ float volatile held[64];
  if (FIXED || threadIdx.x < 48) held[threadIdx.x] = in[element()];
  __syncthreads();
  out[element()] = held[threadIdx.x];
}

// Of the second warp half the threads come to the barrier, and the others pass it by.
extern "C" __global__ void divergent_barrier(float const* in, float* out) {
  float const mine = in[element()];
  if (FIXED || threadIdx.x < 48) __syncthreads();
  out[element()] = mine;
  __syncthreads();  // threads that have ended would not be missing
}
