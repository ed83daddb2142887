// Parquet pages to columns: decompression, dictionaries, values, text.
//
// Every algorithm is written once, for a team of lanes that share memory: a warp or a block of a GPU, or the one
// thread of a host block. Lanes take items in strides or in contiguous pieces, so that one lane simply takes all.
//
// Invariant: bytes of a file are never trusted. Positions and counts are checked against the page before anything
// is read by them, and against the column before anything is written; loops are bounded by the page's bytes or
// rows. A malformed page sets the error cell and its rows get values that later kernels may index by. Words are
// read whole, so up to 7 bytes around a page may be touched, but never used.

// ---------------------------------------------------------------- what the host tells; see parquet.rs

struct CopyTask {
  const u8* from;
  u8* to;
  u64 bytes;
};

struct PageInput {
  const u8* from;
  u8* to;
  u32 bytes, plain_bytes, codec, task;
};

struct PageTask {
  const u8* levels;
  const u8* values;
  u32 level_bytes, value_bytes, rows, skip, take, chunk;
  u64 out;
  u32 encoding, level_mode;
};

struct ChunkTask {
  i128 min, max;
  const u8* dict;
  u32* entries;
  u32* lengths;
  u32 dict_bytes, dict_entries, column, bounds;
};

struct ColumnTask {
  i128 times, over;
  u8* values;
  u8* valid;
  u32* offsets;
  u32* sources;
  const u32* dict_offsets;
  const u8* dict_bytes;
  u64 rows, capacity;
  u32 dict_entries, kind, physical, type_length, elem_bytes, flags;
};

static_assert(sizeof(CopyTask) == 24, "as in parquet.rs");
static_assert(sizeof(PageInput) == 32 && sizeof(PageTask) == 56, "as in parquet.rs");
static_assert(sizeof(ChunkTask) == 80 && sizeof(ColumnTask) == 128, "as in parquet.rs");

enum Codec { SNAPPY = 1, LZ4 = 5, LZ4_RAW = 7 };
enum Encoding {
  PLAIN = 0,
  PLAIN_DICTIONARY = 2,
  RLE = 3,
  DELTA_BINARY_PACKED = 5,
  DELTA_LENGTH_BYTE_ARRAY = 6,
  DELTA_BYTE_ARRAY = 7,
  RLE_DICTIONARY = 8,
  BYTE_STREAM_SPLIT = 9
};
enum LevelMode { LEVELS_NONE = 0, LEVELS_V1 = 1, LEVELS_V2 = 2 };
enum BoundsKind { BOUNDS_UNKNOWN = 0, BOUNDS_EMPTY = 1, BOUNDS_WITHIN = 2 };
enum Kind { KIND_INTEGER = 0, KIND_FLOAT = 1, KIND_CODES = 2, KIND_TEXT = 3 };
enum PhysicalType { BOOLEAN = 0, INT32 = 1, INT64 = 2, FLOAT = 4, DOUBLE = 5, BYTE_ARRAY = 6, FIXED = 7 };
enum Flag { STORED_UNSIGNED = 1, ELEM_UNSIGNED = 2 };
enum Reason {
  BAD_COMPRESSED = 1,
  BAD_DICTIONARY = 2,
  BAD_LEVELS = 3,
  BAD_VALUES = 4,
  BAD_INDEX = 5,
  BAD_NULL = 6,
  OUTSIDE_FOOTER = 7,
  TOO_WIDE = 8,
  MISSING_TEXT = 9,
  TOO_MUCH_TEXT = 10,
  UNSUPPORTED = 11
};

// Stands for a text that the table-wide dictionary lacks.
#define NO_CODE 0xffffffffu

// Reports what is wrong with a task, unless something was reported before.
DKB_FN void report(u64* error, u64 task, Reason reason) {
  if (load(error) == 0) atomic_cas(error, u64(0), (task + 1) << 8 | u64(reason));
}

// A function that runs once a page or batch: kept out of line, so that it costs the loops around it no registers.
#ifdef DKB_HOST
#define DKB_COLD static __noinline__
#else
#define DKB_COLD static __device__ __noinline__
#endif

// ---------------------------------------------------------------- teams

// What a team offers: `lane` and LANES; `sync`, after which all lanes see what any has written; `any`; `of`, the
// value of another lane; and `before`, the sum of a value over lower lanes, with the total over all.
#ifdef DKB_HOST

struct Alone {
  enum : u32 { LANES = 1 };
  static u32 lane() { return 0; }
  static void sync() {}
  static bool any(bool v) { return v; }
  template <class T> static T of(T v, u32) { return v; }
  template <class T> static T before(T v, T* total) {
    *total = v;
    return 0;
  }
};
typedef Alone Warp;
typedef Alone Block;

struct Pair {
  static bool first() { return true; }
  static bool second() { return true; }
  static void sync() {}
};

DKB_FN u64 block_index() { return dkb_block; }
DKB_FN u64 block_count() { return dkb_blocks; }
DKB_FN void prefetch(const u8*) {}

#else

struct Warp {
  enum : u32 { LANES = 32 };
  DKB_MEMBER static u32 lane() { return threadIdx.x % 32; }
  DKB_MEMBER static void sync() { __syncwarp(); }
  DKB_MEMBER static bool any(bool v) { return __any_sync(~0u, v); }
  template <class T> DKB_MEMBER static T of(T v, u32 other) { return __shfl_sync(~0u, v, other); }
  template <class T> DKB_MEMBER static T before(T v, T* total) {
    T sum = v;
    for (u32 d = 1; d < 32; d *= 2) {
      T other = __shfl_up_sync(~0u, sum, d);
      if (lane() >= d) sum += other;
    }
    *total = of(sum, 31);
    return sum - v;
  }
};

// The two warps of a block: the second does what the first has made ready before the last `sync`. One lane alone is
// both.
struct Pair {
  DKB_MEMBER static bool first() { return threadIdx.x < 32; }
  DKB_MEMBER static bool second() { return threadIdx.x >= 32; }
  DKB_MEMBER static void sync() { __syncthreads(); }
};

struct Block {
  enum : u32 { LANES = 256 };
  DKB_MEMBER static u32 lane() { return threadIdx.x; }
  DKB_MEMBER static void sync() { __syncthreads(); }
  template <class T> DKB_MEMBER static T before(T v, T* total) {
    __shared__ T partial[LANES / 32];
    T in_warp, sum = Warp::before(v, &in_warp);
    if (Warp::lane() == 0) partial[threadIdx.x / 32] = in_warp;
    __syncthreads();
    *total = 0;
    for (u32 w = 0; w < LANES / 32; ++w) {
      if (w == threadIdx.x / 32) sum += *total;
      *total += partial[w];
    }
    __syncthreads();
    return sum;
  }
};

DKB_FN u64 block_index() { return blockIdx.x; }
DKB_FN u64 block_count() { return gridDim.x; }
DKB_FN void prefetch(const u8* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

#endif

// The items of `n` that belong to this lane, when each lane takes a contiguous piece.
struct Piece {
  u32 begin, end;
};
template <class Team> DKB_FN Piece piece_of(u32 n) {
  u32 each = (n + Team::LANES - 1) / Team::LANES, begin = Team::lane() * each;
  Piece p = {begin < n ? begin : n, begin + each < n ? begin + each : n};
  return p;
}

// ---------------------------------------------------------------- bytes

DKB_FN u32 least(u32 a, u32 b) { return a < b ? a : b; }

// The 4-byte word that contains the byte at `p`.
DKB_FN const u32* aligned_word(const u8* p) { return (const u32*)(u64(p) & ~3ull); }

// 32 bits of the two words from `word`, `shift` < 32 bits in.
DKB_FN u32 funnel(u32 low, u32 high, u32 shift) { return u32(((u64(high) << 32) | low) >> shift); }

DKB_FN u32 u32_at(const u8* p) {
  const u32* word = aligned_word(p);
  u32 shift = u32(u64(p) & 3) * 8;
  return shift == 0 ? word[0] : funnel(word[0], word[1], shift);
}

DKB_FN u64 u64_at(const u8* p) {
  if ((u64(p) & 7) == 0) return *(const u64*)p;
  return u64(u32_at(p + 4)) << 32 | u32_at(p);
}

// `width` bits, 1 to 64, that begin `bit` bits behind `p`, least significant first.
DKB_FN u32 bits_at(const u8* p, u64 bit, u32 width, u32) {
  u64 from = (u64(p) & 3) * 8 + bit;
  const u32* word = aligned_word(p) + from / 32;
  u32 shift = u32(from % 32), high = shift + width > 32 ? word[1] : 0;
  return funnel(word[0], high, shift) & (~0u >> (32 - width));
}
DKB_FN u64 bits_at(const u8* p, u64 bit, u32 width, u64) {
  if (width <= 32) return bits_at(p, bit, width, u32());
  return u64(bits_at(p, bit + 32, width - 32, u32())) << 32 | bits_at(p, bit, 32, u32());
}

struct alignas(16) Words {
  u32 word[4];
};

// Reads what is not read again.
DKB_FN Words load_once(const Words* p) {
#ifdef DKB_HOST
  return *p;
#else
  Words w;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
               : "l"(p));
  return w;
#endif
}

// Copies `n` bytes that do not overlap; a warp takes part.
DKB_FN void copy_bytes(u8* __restrict__ to, const u8* __restrict__ from, u32 n) {
  const u32 lane = Warp::lane(), head = least(u32(0 - u64(to)) & 15, n), body = (n - head) / 16;
  for (u32 i = lane; i < head; i += Warp::LANES) to[i] = from[i];
  to += head, from += head;
  const u32* word = aligned_word(from);
  const u32 shift = u32(u64(from) & 3) * 8;
  if ((u64(from) & 15) == 0) {
#pragma unroll 4
    for (u32 i = lane; i < body; i += Warp::LANES) ((Words*)to)[i] = ((const Words*)from)[i];
  } else if (shift == 0) {
#pragma unroll 4
    for (u32 i = lane; i < body; i += Warp::LANES) {
      const u32* w = word + i * 4;
      ((Words*)to)[i] = Words{{w[0], w[1], w[2], w[3]}};
    }
  } else {
#pragma unroll 2
    for (u32 i = lane; i < body; i += Warp::LANES) {
      const u32* w = word + i * 4;
      ((Words*)to)[i] = Words{{funnel(w[0], w[1], shift), funnel(w[1], w[2], shift), funnel(w[2], w[3], shift),
                               funnel(w[3], w[4], shift)}};
    }
  }
  for (u32 i = body * 16 + lane; i < n - head; i += Warp::LANES) to[i] = from[i];
}
