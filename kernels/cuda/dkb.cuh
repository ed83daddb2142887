// Primitives of kernel plans. One source serves the GPU and, with DKB_HOST, the CPU, where a block has one
// thread. Generated sources use these and nothing below them: no thread or warp intrinsics, no mutable
// globals, no unguarded division.
//
// Conventions: `rows` are u64; a missing row or slot is DKB_NONE; row links are u32 row + 1, 0 for none.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef __int128 i128;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned __int128 u128;
typedef double f64;

// A piece of text: bytes that the kernel does not own.
struct Str {
  const u8* ptr;
  u32 len;
};

static_assert(sizeof(u64) == 8 && sizeof(i128) == 16 && sizeof(Str) == 16, "sizes the runtime relies on");

#define DKB_NONE (~0ull)

// Error codes of flags[1].
enum { DKB_OVERFLOW = 1, DKB_DIVISION = 2, DKB_SCALAR = 3 };

// ---------------------------------------------------------------- rows and atomics

#ifdef DKB_HOST

#define DKB_FN static inline
#define DKB_MEMBER inline
#define DKB_ROWS(i, n)                                                                            \
  for (u64 i = u64(u128(n) * dkb_block / dkb_blocks), i##_end = u64(u128(n) * (dkb_block + 1) / dkb_blocks); \
       i < i##_end; ++i)

// The rows for which `passes(i)` is true, a function of the row alone.
#define DKB_ROWS_THAT(i, n, passes) DKB_ROWS(i, n) if (passes(i))
#define DKB_ROWS_AHEAD(i, n, passes) DKB_ROWS(i, n) if (passes(i))

// Tiles of as many rows as the block has threads: all threads of the block take part in every one.
#define DKB_TILES(first, n) DKB_ROWS(first, n)
DKB_FN u64 block_thread() { return 0; }

template <class T> DKB_FN T load(const T* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
template <class T> DKB_FN void store(T* p, T v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
template <class T> DKB_FN T atomic_cas(T* p, T expected, T desired) {
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
template <class T> DKB_FN T atomic_exchange(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_ACQ_REL); }
DKB_FN u32 atomic_add(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DKB_FN u64 atomic_add(u64* p, u64 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DKB_FN void atomic_or(u32* p, u32 v) { __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
template <class T> DKB_FN void atomic_min(T* p, T v) {
  for (T old = load(p); v < old;) {
    T seen = atomic_cas(p, old, v);
    if (seen == old) return;
    old = seen;
  }
}
template <class T> DKB_FN void atomic_max(T* p, T v) {
  for (T old = load(p); v > old;) {
    T seen = atomic_cas(p, old, v);
    if (seen == old) return;
    old = seen;
  }
}
template <class T> DKB_FN T block_sum(T v) { return v; }
template <class T> DKB_FN T block_min(T v) { return v; }
template <class T> DKB_FN T block_max(T v) { return v; }
DKB_FN bool block_leader() { return true; }
template <class F> DKB_FN u64 block_place(u32 v, F whole) { return whole(u64(v)); }

#else

#define DKB_FN static __device__ __forceinline__
#define DKB_MEMBER __device__ __forceinline__
#define DKB_ROWS(i, n)                                                  \
  for (u64 i = blockIdx.x * u64(blockDim.x) + threadIdx.x; i < (n);     \
       i += u64(gridDim.x) * blockDim.x)

// A block has at most this many threads.
#define DKB_BLOCK 256

// The rows for which `passes(i)` is true, in no order. Each warp tests rows until it has one for every lane, so that
// what follows, of which the test lets few rows come, runs with all lanes.
#define DKB_ROWS_THAT(i, n, passes)                                          \
  for (PassingRows<decltype(passes)> i##_that(n, passes); i##_that.next();) \
    for (u64 i = i##_that.row(); i != DKB_NONE; i = DKB_NONE)

template <class F> struct PassingRows {
  // Rows that a lane tests before the warp counts those that pass: their loads are in flight together.
  enum { BATCH = 4 };
  const u64 rows, stride;
  const F& passes;
  u64 first;     // the warp's next row to test
  u32 held = 0;  // rows that passed and were not returned
  u64 mine;
  u64* queue;

  DKB_MEMBER PassingRows(u64 rows, const F& passes)
      : rows(rows), stride(u64(gridDim.x) * blockDim.x), passes(passes),
        first(blockIdx.x * u64(blockDim.x) + threadIdx.x / 32 * 32) {
    __shared__ u64 queues[DKB_BLOCK / 32][32 * (BATCH + 1)];
    queue = queues[threadIdx.x / 32];
  }
  DKB_MEMBER bool next() {
    const u32 lane = threadIdx.x % 32;
    __syncwarp();
    while (held < 32 && first < rows) {
      bool pass[BATCH];
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const u64 row = first + k * stride + lane;
        pass[k] = row < rows && passes(row);
      }
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const u32 all = __ballot_sync(~0u, pass[k]);
        if (pass[k]) queue[held + __popc(all & ((1u << lane) - 1))] = first + k * stride + lane;
        held += __popc(all);
      }
      first += BATCH * stride;
    }
    if (held == 0) return false;
    __syncwarp();
    const u32 taken = held < 32 ? held : 32;
    held -= taken;
    mine = lane < taken ? queue[held + lane] : DKB_NONE;
    return true;
  }
  DKB_MEMBER u64 row() const { return mine; }
};

// The same where `passes` is a cheap test of one column: lanes go on with the rows that they have tested.
#define DKB_ROWS_AHEAD(i, n, passes)                                         \
  for (TestedRows<decltype(passes)> i##_that(n, passes); i##_that.next();)   \
    for (u64 i = i##_that.row(); i != DKB_NONE; i = DKB_NONE)

template <class F> struct TestedRows {
  // Rows that a lane tests at a time: their loads are in flight together.
  enum { BATCH = 4 };
  const u64 rows, stride;
  const F& passes;
  u64 first;     // the lane's next row to test
  u64 from;      // the first row of the batch
  u32 left = 0;  // rows of the batch that passed and were not returned, a bit each

  DKB_MEMBER TestedRows(u64 rows, const F& passes)
      : rows(rows), stride(u64(gridDim.x) * blockDim.x), passes(passes),
        first(blockIdx.x * u64(blockDim.x) + threadIdx.x) {}
  DKB_MEMBER bool next() {
    // all lanes of a warp test together, so that they read neighbouring rows
    while (!__any_sync(~0u, left != 0)) {
      if (first - threadIdx.x % 32 >= rows) return false;
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        const u64 row = first + k * stride;
        left |= u32(row < rows && passes(row)) << k;
      }
      from = first;
      first += BATCH * stride;
    }
    return true;
  }
  DKB_MEMBER u64 row() {
    if (left == 0) return DKB_NONE;
    const u64 row = from + u64(__ffs(left) - 1) * stride;
    left &= left - 1;
    return row;
  }
};

#define DKB_TILES(first, n) \
  for (u64 first = blockIdx.x * u64(blockDim.x); first < (n); first += u64(gridDim.x) * blockDim.x)
DKB_FN u64 block_thread() { return threadIdx.x; }

template <class T> DKB_FN T load(const T* p) {
  T v = *(const volatile T*)p;
  __threadfence();
  return v;
}
template <class T> DKB_FN void store(T* p, T v) {
  __threadfence();
  *(volatile T*)p = v;
}
DKB_FN u32 atomic_cas(u32* p, u32 expected, u32 desired) { return atomicCAS(p, expected, desired); }
DKB_FN u64 atomic_cas(u64* p, u64 expected, u64 desired) { return atomicCAS(p, expected, desired); }
DKB_FN u32 atomic_exchange(u32* p, u32 v) { return atomicExch(p, v); }
DKB_FN u32 atomic_add(u32* p, u32 v) { return atomicAdd(p, v); }
DKB_FN u64 atomic_add(u64* p, u64 v) { return atomicAdd(p, v); }
DKB_FN void atomic_or(u32* p, u32 v) { atomicOr(p, v); }
DKB_FN void atomic_min(u32* p, u32 v) { atomicMin(p, v); }
DKB_FN void atomic_min(i32* p, i32 v) { atomicMin(p, v); }
DKB_FN void atomic_min(u64* p, u64 v) { atomicMin(p, v); }
DKB_FN void atomic_min(i64* p, i64 v) { atomicMin(p, v); }
DKB_FN void atomic_max(u32* p, u32 v) { atomicMax(p, v); }
DKB_FN void atomic_max(i32* p, i32 v) { atomicMax(p, v); }
DKB_FN void atomic_max(u64* p, u64 v) { atomicMax(p, v); }
DKB_FN void atomic_max(i64* p, i64 v) { atomicMax(p, v); }

DKB_FN i64 shuffle_xor(i64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
DKB_FN u64 shuffle_xor(u64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
DKB_FN f64 shuffle_xor(f64 v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
DKB_FN i128 shuffle_xor(i128 v, int lanes) {
  u64 low = __shfl_xor_sync(~0u, u64(v), lanes);
  u64 high = __shfl_xor_sync(~0u, u64(u128(v) >> 64), lanes);
  return i128(u128(high) << 64 | low);
}

// Combines one value a thread over the block; all threads take part, thread 0 has the result.
template <class T, class F> DKB_FN T block_reduce(T v, F combine) {
  __shared__ T partial[32];
  for (int lanes = 16; lanes > 0; lanes /= 2) v = combine(v, shuffle_xor(v, lanes));
  int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) partial[warp] = v;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < warps; ++w) v = combine(v, partial[w]);
  __syncthreads();
  return v;
}
template <class T> DKB_FN T block_sum(T v) {
  return block_reduce(v, [](T a, T b) { return a + b; });
}
template <class T> DKB_FN T block_min(T v) {
  return block_reduce(v, [](T a, T b) { return a < b ? a : b; });
}
template <class T> DKB_FN T block_max(T v) {
  return block_reduce(v, [](T a, T b) { return a > b ? a : b; });
}
DKB_FN bool block_leader() { return threadIdx.x == 0; }

// A range for each thread of the block, of `v` numbers: returns its first. `whole` takes the range of all threads
// together, given its length, and is called by one of them. All threads of the block take part.
template <class F> DKB_FN u64 block_place(u32 v, F whole) {
  __shared__ u32 ahead[32];
  __shared__ u64 base;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  u32 upto = v;
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    u32 below = __shfl_up_sync(~0u, upto, lanes);
    if (lane >= lanes) upto += below;
  }
  if (lane == 31) ahead[warp] = upto;
  __syncthreads();
  if (threadIdx.x == 0) {
    u32 sum = 0;
    for (int w = 0; w < warps; ++w) {
      u32 here = ahead[w];
      ahead[w] = sum;
      sum += here;
    }
    base = whole(u64(sum));
  }
  __syncthreads();
  u64 place = base + ahead[warp] + upto - v;
  __syncthreads();
  return place;
}

#endif

DKB_FN void atomic_add(i64* p, i64 v) { atomic_add((u64*)p, u64(v)); }

// 128 bits as two words: the low word's old value tells whether it carried.
DKB_FN void atomic_add(i128* p, i128 v) {
  u64* word = (u64*)p;
  u64 low = u64(v), high = u64(u128(v) >> 64);
  if (low != 0 && atomic_add(word, low) + low < low) high += 1;
  if (high != 0) atomic_add(word + 1, high);
}

// Doubles through their bits: one loop serves sum, minimum and maximum.
template <class F> DKB_FN void atomic_f64(f64* p, F next) {
  u64* word = (u64*)p;
  u64 old = load(word);
  for (;;) {
    f64 now;
    memcpy(&now, &old, 8);
    f64 wanted = next(now);
    u64 bits;
    memcpy(&bits, &wanted, 8);
    if (bits == old) return;
    u64 seen = atomic_cas(word, old, bits);
    if (seen == old) return;
    old = seen;
  }
}
DKB_FN void atomic_add(f64* p, f64 v) {
  atomic_f64(p, [=](f64 now) { return now + v; });
}
DKB_FN void atomic_min(f64* p, f64 v) {
  atomic_f64(p, [=](f64 now) { return v < now ? v : now; });
}
DKB_FN void atomic_max(f64* p, f64 v) {
  atomic_f64(p, [=](f64 now) { return v > now ? v : now; });
}

// Folds one value a thread into one cell; all threads of the block take part.
template <class T> DKB_FN void block_add(T* cell, T v) {
  v = block_sum(v);
  if (block_leader() && v != T(0)) atomic_add(cell, v);
}
template <class T> DKB_FN void block_min(T* cell, T v) {
  v = block_min(v);
  if (block_leader()) atomic_min(cell, v);
}
template <class T> DKB_FN void block_max(T* cell, T v) {
  v = block_max(v);
  if (block_leader()) atomic_max(cell, v);
}

// Sums for a handful of groups, held in registers: the group is selected by comparison, not by indexing, so
// that the array stays out of memory. Cells may be wider than the sums held here, which are then spilled before
// they can overflow.
template <int GROUPS, class T> struct FewSums {
  T sum[GROUPS];
  DKB_MEMBER FewSums() {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) sum[g] = T(0);
  }
  DKB_MEMBER void add(u64 group, T v) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) sum[g] += u64(g) == group ? v : T(0);
  }
  // Empties this thread's sums into the cells.
  template <class CELL> DKB_MEMBER void spill(CELL* cells) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      atomic_add(cells + g, CELL(sum[g]));
      sum[g] = T(0);
    }
  }
  // Adds the block's sums to the cells; all threads of the block take part.
  template <class CELL> DKB_MEMBER void flush(CELL* cells) {
    // Out of registers, so that one sum over the block serves all groups: it is what takes the compiler long.
    T all[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) all[g] = sum[g];
#pragma unroll 1
    for (int g = 0; g < GROUPS; ++g) block_add(cells + g, CELL(all[g]));
  }
};

// ---------------------------------------------------------------- flags

// Reports that assumption `k` of the plan does not hold.
DKB_FN void refute(u32* flags, u32 k) { atomic_or(flags, 1u << k); }

// Reports an error of the query itself.
DKB_FN void fail(u32* flags, u32 code) { atomic_max(flags + 1, code); }

// ---------------------------------------------------------------- rows appended to buffers

// The next free row; at or past the capacity the caller must not write it.
DKB_FN u64 append(u64* counter) { return atomic_add(counter, 1ull); }

// Rows that were really written.
DKB_FN u64 filled(const u64* counter, u64 capacity) { return *counter < capacity ? *counter : capacity; }

// ---------------------------------------------------------------- bitmaps

DKB_FN void bit_set(u32* words, u64 bits, u64 k) {
  if (k < bits && !(load(words + k / 32) >> (k % 32) & 1)) atomic_or(words + k / 32, 1u << (k % 32));
}
DKB_FN bool bit_test(const u32* words, u64 bits, u64 k) { return k < bits && (words[k / 32] >> (k % 32) & 1); }

DKB_FN u64 bit_count(u32 word) {
#ifdef DKB_HOST
  return u64(__builtin_popcount(word));
#else
  return u64(__popc(word));
#endif
}

// The place of the lowest bit that is set; there is one.
DKB_FN u64 lowest_bit(u64 word) {
#ifdef DKB_HOST
  return u64(__builtin_ctzll(word));
#else
  return u64(__ffsll(i64(word)) - 1);
#endif
}

// ---------------------------------------------------------------- ranked bitmaps

// A word has the bits of 32 keys in its low half. Once `rank_words` has run, its high half has the rank of the
// first of them that is set. Ranks number the keys that are set: each has one of its own, in no order.

DKB_FN void rank_set(u64* words, u64 k) {
  u32* bits = (u32*)(words + k / 32);
  u32 bit = 1u << (k % 32);
  if (!(load(bits) & bit)) atomic_or(bits, bit);
}

// Ranks all keys that are set; `ranks` counts them, from zero. All threads of the block take part.
DKB_FN void rank_words(u64* words, u64 count, u64* ranks) {
  DKB_TILES(first, count) {
    u64 w = first + block_thread();
    u32 set = w < count ? u32(bit_count(u32(words[w]))) : 0;
    u64 rank = block_place(set, [=](u64 sum) { return sum ? atomic_add(ranks, sum) : 0; });
    if (set) words[w] |= rank << 32;
  }
}

// The rank of a key that is set.
DKB_FN u64 rank_of(const u64* words, u64 k) {
  u64 word = words[k / 32];
  return (word >> 32) + bit_count(u32(word) & ((1u << (k % 32)) - 1));
}

// The rank of a key of a bitmap of `count` words, or DKB_NONE if it is not set.
DKB_FN u64 rank_find(const u64* words, u64 count, u64 k) {
  if (k / 32 >= count) return DKB_NONE;
  u64 word = words[k / 32];
  u32 bit = 1u << (k % 32);
  return u32(word) & bit ? (word >> 32) + bit_count(u32(word) & (bit - 1)) : DKB_NONE;
}

// ---------------------------------------------------------------- hash tables (open addressing, slots a power of two)

// A longer probe sequence than this means that the table is too small.
#define DKB_PROBES 1024

DKB_FN u64 hash64(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// Key words of a multi-word key: its hash.
template <int W> DKB_FN u64 hash_words(const u64 (&key)[W]) {
  u64 h = 0;
  for (int w = 0; w < W; ++w) h = hash64(h * 31 + key[w]);
  return h;
}

// Which of `parts` shards a hashed key belongs to. Uses other bits than the slot does.
DKB_FN bool in_part(u64 hash, u64 part, u64 parts) { return parts == 1 || (hash >> 40) % parts == part; }

// Counts a key that found no slot, so that the runtime enlarges the table and starts over.
DKB_FN u64 hash_full(u64* counter, u64 slots) {
  atomic_max(counter, slots + 1);
  return DKB_NONE;
}

// The slot of a one-word key, claimed if new. Key 0 marks an empty slot: keys are biased by the caller.
DKB_FN u64 hash_insert(u64* keys, u64 slots, u64* counter, u64 key) {
  u64 slot = hash64(key) & (slots - 1);
  for (int probe = 0; probe < DKB_PROBES; ++probe, slot = (slot + 1) & (slots - 1)) {
    u64 found = load(keys + slot);
    if (found == 0) {
      found = atomic_cas(keys + slot, 0ull, key);
      if (found == 0) {
        atomic_add(counter, 1ull);
        return slot;
      }
    }
    if (found == key) return slot;
  }
  return hash_full(counter, slots);
}

// The slot of a one-word key, or DKB_NONE.
DKB_FN u64 hash_find(const u64* keys, u64 slots, u64 key) {
  u64 slot = hash64(key) & (slots - 1);
  for (int probe = 0; probe < DKB_PROBES; ++probe, slot = (slot + 1) & (slots - 1)) {
    u64 found = keys[slot];
    if (found == key) return slot;
    if (found == 0) return DKB_NONE;
  }
  return DKB_NONE;
}

// The slot of a key of W words, claimed if new. `state` is 0 for empty, 1 while the key is being written, 2 when
// it can be read.
template <int W> DKB_FN u64 hash_insert(u32* state, u64* keys, u64 slots, u64* counter, const u64 (&key)[W]) {
  u64 slot = hash_words(key) & (slots - 1);
  for (int probe = 0; probe < DKB_PROBES; ++probe, slot = (slot + 1) & (slots - 1)) {
    u32 seen = load(state + slot);
    if (seen == 0) {
      seen = atomic_cas(state + slot, 0u, 1u);
      if (seen == 0) {
        for (int w = 0; w < W; ++w) keys[slot * W + w] = key[w];
        store(state + slot, 2u);
        atomic_add(counter, 1ull);
        return slot;
      }
    }
    while (seen != 2) seen = load(state + slot);
    bool same = true;
    for (int w = 0; w < W; ++w) same &= *(const volatile u64*)(keys + slot * W + w) == key[w];
    if (same) return slot;
  }
  return hash_full(counter, slots);
}

// The slot of a key of W words, or DKB_NONE.
template <int W> DKB_FN u64 hash_find(const u32* state, const u64* keys, u64 slots, const u64 (&key)[W]) {
  u64 slot = hash_words(key) & (slots - 1);
  for (int probe = 0; probe < DKB_PROBES; ++probe, slot = (slot + 1) & (slots - 1)) {
    if (state[slot] == 0) return DKB_NONE;
    bool same = true;
    for (int w = 0; w < W; ++w) same &= keys[slot * W + w] == key[w];
    if (same) return slot;
  }
  return DKB_NONE;
}

// ---------------------------------------------------------------- rows linked by key

// Links `row` in front of the rows of its key. Returns whether the key had rows already.
DKB_FN bool link_row(u32* heads, u64 slot, u32* next, u64 row) {
  u32 before = atomic_exchange(heads + slot, u32(row + 1));
  next[row] = before;
  return before != 0;
}

// Makes `row` the only row of its key. Returns whether the key had one already.
DKB_FN bool link_only(u32* heads, u64 slot, u64 row) { return atomic_exchange(heads + slot, u32(row + 1)) != 0; }

// First row link of a slot, 0 for none.
DKB_FN u32 first_link(const u32* heads, u64 slots, u64 slot) { return slot < slots ? heads[slot] : 0; }

// ---------------------------------------------------------------- arithmetic

DKB_FN i128 power10(int n) {
  i128 p = 1;
  for (int k = 0; k < n; ++k) p *= 10;
  return p;
}

// Decimal division as SQL engines do it: the numerator scaled by `scale`, truncated. NULL never gets here.
DKB_FN i128 decimal_div(i128 a, i128 b, i128 scale, u32* flags) {
  if (b == 0) {
    fail(flags, DKB_DIVISION);
    return 0;
  }
  const i128 limit = i128(~u128(0) >> 1) / scale;
  if (a > limit || a < -limit) {
    fail(flags, DKB_OVERFLOW);
    return 0;
  }
  return a * scale / b;
}

// Integer division and remainder that fail instead of trapping.
template <class T> DKB_FN T int_div(T a, T b, u32* flags) {
  if (b == 0) {
    fail(flags, DKB_DIVISION);
    return 0;
  }
  if (b == -1) return T(0) - a;
  return a / b;
}
template <class T> DKB_FN T int_mod(T a, T b, u32* flags) {
  if (b == 0) {
    fail(flags, DKB_DIVISION);
    return 0;
  }
  return b == -1 ? T(0) : a % b;
}

// Reduces a decimal's scale by the power of ten `by`, rounding half away from zero.
DKB_FN i128 round_scale(i128 a, i128 by) {
  i128 half = by / 2;
  return (a >= 0 ? a + half : a - half) / by;
}

// Fails unless |a| < limit (10^precision); otherwise a.
DKB_FN i128 within(i128 a, i128 limit, u32* flags) {
  if (a >= limit || a <= -limit) fail(flags, DKB_OVERFLOW);
  return a;
}

// A double as a decimal scaled by `factor`, rounded half away from zero; fails unless below `limit`.
DKB_FN i128 decimal_of(f64 v, f64 factor, i128 limit, u32* flags) {
  f64 scaled = round(v * factor);
  if (!(scaled < 1.7e38 && scaled > -1.7e38)) {
    fail(flags, DKB_OVERFLOW);
    return 0;
  }
  return within(i128(scaled), limit, flags);
}

DKB_FN i128 checked_mul(i128 a, i128 b, u32* flags) {
  if (a == 0 || b == 0) return 0;
  i128 product = i128(u128(a) * u128(b));
  if (product / b != a) fail(flags, DKB_OVERFLOW);
  return product;
}

// ---------------------------------------------------------------- dates

struct Civil {
  i32 year, month, day;
};

// Days since 1970-01-01 to the proleptic Gregorian calendar, by 400-year eras that begin in March.
DKB_FN Civil civil(i64 days) {
  i64 shifted = days + 719468;
  i64 era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
  u32 day_of_era = u32(shifted - era * 146097);
  u32 year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  u32 day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  u32 march_month = (5 * day_of_year + 2) / 153;
  Civil c;
  c.day = i32(day_of_year - (153 * march_month + 2) / 5 + 1);
  c.month = march_month < 10 ? i32(march_month) + 3 : i32(march_month) - 9;
  c.year = i32(i64(year_of_era) + era * 400) + (c.month <= 2);
  return c;
}
// The inverse of `civil`.
DKB_FN i64 days_of(i64 year, i64 month, i64 day) {
  year -= month <= 2;
  i64 era = (year >= 0 ? year : year - 399) / 400;
  i64 year_of_era = year - era * 400;
  i64 day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
  return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

// A date moved by months; a day that the month lacks becomes its last.
DKB_FN i64 add_months(i64 days, i64 months) {
  if (months == 0) return days;
  Civil c = civil(days);
  i64 index = i64(c.year) * 12 + (c.month - 1) + months;
  i64 year = (index >= 0 ? index : index - 11) / 12, month = index - year * 12 + 1;
  i64 first = days_of(year, month, 1);
  i64 next = month == 12 ? days_of(year + 1, 1, 1) : days_of(year, month + 1, 1);
  i64 day = c.day <= next - first ? c.day : next - first;
  return first + day - 1;
}

DKB_FN i64 year_of(i64 days) { return civil(days).year; }
DKB_FN i64 month_of(i64 days) { return civil(days).month; }
DKB_FN i64 day_of(i64 days) { return civil(days).day; }

// ---------------------------------------------------------------- text

DKB_FN Str text_at(const u32* offsets, const u8* bytes, u64 i) {
  Str s = {bytes + offsets[i], offsets[i + 1] - offsets[i]};
  return s;
}

// -1, 0 or 1, bytewise.
DKB_FN int compare(Str a, Str b) {
  u32 n = a.len < b.len ? a.len : b.len;
  for (u32 i = 0; i < n; ++i)
    if (a.ptr[i] != b.ptr[i]) return a.ptr[i] < b.ptr[i] ? -1 : 1;
  return a.len == b.len ? 0 : a.len < b.len ? -1 : 1;
}
DKB_FN bool equal(Str a, Str b) { return a.len == b.len && compare(a, b) == 0; }

// Bytes of the UTF-8 character that starts with `first`.
DKB_FN u32 char_bytes(u8 first) { return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4; }

// SQL substring: characters `from` (1-based, may be below 1) and on, `count` of them.
DKB_FN Str substring(Str s, i64 from, i64 count) {
  i64 end = count > i64(1) << 40 ? i64(1) << 41 : from + count;
  if (from < 1) from = 1;
  u32 start = 0;
  i64 at = 1;
  while (at < from && start < s.len) start += char_bytes(s.ptr[start]), at += 1;
  if (start > s.len) start = s.len;
  u32 stop = start;
  while (at < end && stop < s.len) stop += char_bytes(s.ptr[stop]), at += 1;
  if (stop > s.len) stop = s.len;
  Str piece = {s.ptr + start, stop - start};
  return piece;
}

// The high bit of each byte of `word` that is `byte`, and perhaps of bytes above one that is.
DKB_FN u64 bytes_equal(u64 word, u8 byte) {
  const u64 ones = 0x0101010101010101ull, differ = word ^ ones * byte;
  return (differ - ones) & ~differ & ones << 7;
}

// The first place at or after `from` that holds `byte`, one in front of it that looks as if, or the length. Reads
// aligned words of 8 bytes, so up to 7 bytes around the text, which every allocation of columns, dictionaries and
// parameters has room for.
DKB_FN u32 find_byte(Str s, u32 from, u8 byte) {
  if (from >= s.len) return s.len;
  const u64 start = u64(s.ptr + from), end = u64(s.ptr + s.len);
  u64 at = start & ~7ull;
  u64 found = bytes_equal(*(const u64*)at, byte) >> 8 * (start - at) << 8 * (start - at);
  while (!found) {
    at += 8;
    if (at >= end) return s.len;
    found = bytes_equal(*(const u64*)at, byte);
  }
  at += lowest_bit(found) / 8;
  return at < end ? u32(at - u64(s.ptr)) : s.len;
}

// `find_byte` for two bytes, one behind the other.
DKB_FN u32 find_pair(Str s, u32 from, u8 first, u8 second) {
  if (from >= s.len) return s.len;
  const u64 start = u64(s.ptr + from), end = u64(s.ptr + s.len);
  u64 at = start & ~7ull;
  u64 word = *(const u64*)at, seconds = bytes_equal(word, second);
  u64 firsts = bytes_equal(word, first) >> 8 * (start - at) << 8 * (start - at);
  for (;;) {
    const u64 ahead = at + 8;
    word = ahead < end ? *(const u64*)ahead : 0;
    const u64 next = bytes_equal(word, second);
    const u64 found = firsts & (seconds >> 8 | next << 56);
    if (found) {
      at += lowest_bit(found) / 8;
      return at < end ? u32(at - u64(s.ptr)) : s.len;
    }
    if (ahead >= end) return s.len;
    at = ahead;
    firsts = bytes_equal(word, first);
    seconds = next;
  }
}

// Whether place `p` of a LIKE pattern stands for its byte.
DKB_FN bool is_plain(Str pattern, u32 p) {
  if (p >= pattern.len) return false;
  const u8 c = pattern.ptr[p];
  return c != '%' && c != '_' && c != '\\';
}

// The next place at or after `from` where what follows place `p` of a LIKE pattern may match, or the length.
DKB_FN u32 like_seek(Str s, u32 from, Str pattern, u32 p) {
  if (!is_plain(pattern, p)) return from;
  if (!is_plain(pattern, p + 1)) return find_byte(s, from, pattern.ptr[p]);
  return find_pair(s, from, pattern.ptr[p], pattern.ptr[p + 1]);
}

// SQL LIKE with `%`, `_` and the escape character `\`. Backtracks to the latest `%` only, which is enough, and
// skips from there to the bytes that must follow it.
DKB_FN bool like(Str s, Str pattern) {
  u32 i = 0, p = 0, star = ~0u, mark = 0;
  while (i < s.len) {
    if (p < pattern.len && pattern.ptr[p] == '%') {
      star = p++;
      mark = i = like_seek(s, i, pattern, p);
      continue;
    }
    if (p < pattern.len) {
      bool escaped = pattern.ptr[p] == '\\' && p + 1 < pattern.len;
      if (!escaped && pattern.ptr[p] == '_') {
        i += char_bytes(s.ptr[i]);
        p += 1;
        continue;
      }
      u8 want = escaped ? pattern.ptr[p + 1] : pattern.ptr[p];
      if (s.ptr[i] == want) {
        i += 1;
        p += escaped ? 2 : 1;
        continue;
      }
    }
    if (star == ~0u) return false;
    p = star + 1;
    mark = i = like_seek(s, mark + char_bytes(s.ptr[mark]), pattern, p);
  }
  while (p < pattern.len && pattern.ptr[p] == '%') p += 1;
  return p == pattern.len;
}

// Text of at most 15 bytes in an order-preserving integer: the bytes, most significant first, then the length.
// Longer text refutes assumption `k`.
DKB_FN i128 pack_text(Str s, u32* flags, u32 k) {
  if (s.len > 15) {
    refute(flags, k);
    return 0;
  }
  u128 packed = 0;
  for (u32 i = 0; i < s.len; ++i) packed |= u128(s.ptr[i]) << (120 - 8 * i);
  return i128((packed | s.len) ^ (u128(1) << 127));
}

// ---------------------------------------------------------------- limits and words

template <class T> DKB_FN T largest();
template <class T> DKB_FN T smallest();
#ifdef DKB_HOST
#define DKB_LIMIT template <> inline
#else
#define DKB_LIMIT template <> __device__ __forceinline__
#endif
DKB_LIMIT i32 largest<i32>() { return 0x7fffffff; }
DKB_LIMIT i32 smallest<i32>() { return -0x7fffffff - 1; }
DKB_LIMIT i64 largest<i64>() { return 0x7fffffffffffffffll; }
DKB_LIMIT i64 smallest<i64>() { return -0x7fffffffffffffffll - 1; }
DKB_LIMIT f64 largest<f64>() { return 1.7976931348623157e308; }
DKB_LIMIT f64 smallest<f64>() { return -1.7976931348623157e308; }

// A double as a key word: equal doubles have equal words, so -0 is 0.
DKB_FN u64 f64_word(f64 v) {
  if (v == 0) return 0;
  u64 word;
  memcpy(&word, &v, 8);
  return word;
}
DKB_FN f64 word_f64(u64 word) {
  f64 v;
  memcpy(&v, &word, 8);
  return v;
}
