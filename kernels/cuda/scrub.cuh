// Overwrites what kernels find on a GPU without being given it: shared memory, local memory and the cache. GPU only.

// A block takes all the shared memory that one may have, so that each multiprocessor runs one at a time.
extern "C" __global__ void dkb_scrub_shared(u64 bytes, u64 pattern) {
  extern __shared__ u64 scrub_shared[];
  volatile u64* words = scrub_shared;
  for (u64 i = threadIdx.x; i < bytes / 8; i += blockDim.x) words[i] = pattern;
}

// `into` is written so that no compiler drops the array.
extern "C" __global__ void dkb_scrub_local(u64 pattern, u64* into) {
  enum { WORDS = 256 };
  volatile u64 words[WORDS];
#pragma unroll 1
  for (u32 i = 0; i < WORDS; ++i) words[i] = pattern;
  if (words[pattern % WORDS] != pattern) *into = pattern;
}

extern "C" __global__ void dkb_scrub_cache(u64 words, u64 pattern, u64* scratch) {
  DKB_ROWS(i, words) scratch[i] ^= pattern;
}
