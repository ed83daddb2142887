// Lets dkb.cuh and plan sources compile as host C++.
//
// On the host a block has one thread: the runtime calls a kernel once per block, blocks of one launch on
// several threads at a time, and primitives read `dkb_block` and `dkb_blocks` where a GPU has blockIdx and
// gridDim. Thread and warp intrinsics are left undefined on purpose: with one thread a block they would
// silently count wrong.
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

// Index of the running block, and the number of blocks of its launch.
static thread_local unsigned long long dkb_block = 0;
static thread_local unsigned long long dkb_blocks = 1;

namespace dkb_shim {

// Calls a kernel; each argument is a pointer or an integer and comes as 8 bytes.
template <class... A, size_t... I>
inline void call(void (*kernel)(A...), const unsigned long long* args, std::index_sequence<I...>) {
  static_assert(((sizeof(A) == 8) && ...), "every kernel argument is 8 bytes: a pointer or a u64");
  (void)args;
  kernel((A)(args[I])...);
}

template <class... A>
inline void run(void (*kernel)(A...), unsigned long long block, unsigned long long blocks,
                const unsigned long long* args) {
  dkb_block = block;
  dkb_blocks = blocks;
  call(kernel, args, std::index_sequence_for<A...>{});
}

template <class... A>
constexpr unsigned long long count(void (*)(A...)) {
  return sizeof...(A);
}

}  // namespace dkb_shim

// Exports what the runtime calls to run one block of a kernel, and the number of the kernel's arguments.
#define DKB_EXPORT(kernel)                                                                              \
  extern "C" void dkb_run_##kernel(unsigned long long block, unsigned long long blocks,                 \
                                   const unsigned long long* args) {                                    \
    dkb_shim::run(kernel, block, blocks, args);                                                         \
  }                                                                                                     \
  extern "C" const unsigned long long dkb_args_##kernel;                                                \
  extern "C" const unsigned long long dkb_args_##kernel = dkb_shim::count(kernel);
