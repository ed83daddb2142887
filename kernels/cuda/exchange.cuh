// Folds and copies between devices' copies of buffers, beside dkb.cuh.
//
// A launch works on a list of tasks in order. Both ends of a task lie at the same position within 16 bytes, so
// that all but the edges moves in words of 16 bytes. Which thread handles which element depends on `into`,
// `count` and `first` alone: tasks that fold into the same elements one after another need nothing in between.

// Fold `count` elements at `from` into those at `into`, beginning with thread `first`, so that small tasks do
// not all wait for each other in the first block. Mirrored by exchange.rs.
// If there are marks, blocks of a buffer without one are left alone; `into` is `at` bytes behind the buffer's beginning.
struct ExchangeTask {
  u8* into;
  const u8* from;
  u64 count;
  u32 kind;
  u32 first;
  const u32* marks;
  u64 at;
};

static_assert(sizeof(ExchangeTask) == 48, "the size that the runtime writes");

// Bytes of a block of a buffer, which has a bit among the marks.
#define EXCHANGE_BLOCK 4096

// Mark the blocks of a buffer that are anything but `idle`, over and over. Mirrored by exchange.rs.
struct MarkTask {
  const u8* data;
  u64 bytes;
  u64 idle[2];
  u32* marks;
};

static_assert(sizeof(MarkTask) == 40, "the size that the runtime writes");

// Rows i < n of this thread, of which thread `first`, counted round the grid, has row 0.
#ifdef DKB_HOST
#define EXCHANGE_ROWS(i, n, first) DKB_ROWS(i, n)
#else
DKB_FN u32 exchange_start(u32 first, u32 threads) {
  u32 self = blockIdx.x * blockDim.x + threadIdx.x, skipped = first % threads;
  return self >= skipped ? self - skipped : self + (threads - skipped);
}
#define EXCHANGE_ROWS(i, n, first) \
  for (u64 i = exchange_start(first, gridDim.x * blockDim.x); i < (n); i += gridDim.x * blockDim.x)
#endif

// A kind is 16 times one of these, plus an element type in the order of the element types of plans.
enum { FOLD_COPY = 0, FOLD_SUM = 1, FOLD_MIN = 2, FOLD_MAX = 3, FOLD_OR = 4 };
enum { ELEM_U8, ELEM_U16, ELEM_U32, ELEM_U64, ELEM_I8, ELEM_I16, ELEM_I32, ELEM_I64, ELEM_I128, ELEM_F64 };

struct alignas(16) ExchangeWord {
  u64 low, high;
};

// Folds the elements of type T within 8 bytes.
template <class T, class F> DKB_FN u64 fold_lanes(u64 a, u64 b, F f) {
  const u64 mask = ~0ull >> (64 - 8 * sizeof(T));
  u64 folded = 0;
  for (u32 bit = 0; bit < 64; bit += 8 * sizeof(T)) folded |= (u64(f(T(a >> bit), T(b >> bit))) & mask) << bit;
  return folded;
}

// Folds that know no elements take words as they are.
struct FoldCopy {
  DKB_MEMBER u64 operator()(u64, u64 b) const { return b; }
};
struct FoldOr {
  DKB_MEMBER u64 operator()(u64 a, u64 b) const { return a | b; }
};

template <class T> DKB_FN ExchangeWord fold_word(ExchangeWord, ExchangeWord b, FoldCopy) { return b; }
template <class T> DKB_FN ExchangeWord fold_word(ExchangeWord a, ExchangeWord b, FoldOr) {
  return {a.low | b.low, a.high | b.high};
}
template <class T, class F> DKB_FN ExchangeWord fold_word(ExchangeWord a, ExchangeWord b, F f) {
  if constexpr (sizeof(T) == 16) {
    u128 folded = u128(f(T(u128(a.high) << 64 | a.low), T(u128(b.high) << 64 | b.low)));
    return {u64(folded), u64(folded >> 64)};
  } else {
    return {fold_lanes<T>(a.low, b.low, f), fold_lanes<T>(a.high, b.high, f)};
  }
}

DKB_FN bool is_marked(const u32* marks, u64 at) {
  const u64 block = at / EXCHANGE_BLOCK;
  return marks[block / 32] >> (block % 32) & 1;
}
DKB_FN void mark(u32* marks, u64 at) {
  const u64 block = at / EXCHANGE_BLOCK;
  const u32 bit = 1u << (block % 32);
  if (!(*(const volatile u32*)(marks + block / 32) & bit)) atomic_or(marks + block / 32, bit);
}

template <class T, class F> DKB_FN void fold_task(const ExchangeTask& task, F f) {
  T* into = (T*)task.into;
  const T* from = (const T*)task.from;
  const u64 lanes = 16 / sizeof(T), count = task.count;
  u64 head = (16 - u64(task.into) % 16) % 16 / sizeof(T);
  if (head > count) head = count;
  u64 words = (count - head) / lanes, tail = head + words * lanes;
  ExchangeWord* into_words = (ExchangeWord*)(into + head);
  const ExchangeWord* from_words = (const ExchangeWord*)(from + head);
  const u64 at = task.at + head * sizeof(T);
  EXCHANGE_ROWS(i, words, task.first) {
    if (task.marks != nullptr && !is_marked(task.marks, at + 16 * i)) continue;
    into_words[i] = fold_word<T>(into_words[i], from_words[i], f);
  }
  EXCHANGE_ROWS(i, head, task.first) into[i] = T(f(into[i], from[i]));
  EXCHANGE_ROWS(i, count - tail, task.first) into[tail + i] = T(f(into[tail + i], from[tail + i]));
}

DKB_FN u64 fold_bits(f64 v) {
  u64 bits;
  memcpy(&bits, &v, 8);
  return bits;
}
// Integers in the order of the doubles whose bits are given, of which negative zero is below zero.
DKB_FN i64 fold_order(u64 bits) { return i64(bits) ^ i64(u64(i64(bits) >> 63) >> 1); }

template <class T> DKB_FN void fold_sum(const ExchangeTask& task) {
  fold_task<T>(task, [](T a, T b) { return T(a + b); });
}
template <class T> DKB_FN void fold_min(const ExchangeTask& task) {
  fold_task<T>(task, [](T a, T b) { return b < a ? b : a; });
}
template <class T> DKB_FN void fold_max(const ExchangeTask& task) {
  fold_task<T>(task, [](T a, T b) { return b > a ? b : a; });
}

DKB_FN void fold(const ExchangeTask& task) {
  switch (task.kind) {
    case FOLD_COPY * 16 + ELEM_U8: return fold_task<u8>(task, FoldCopy());
    case FOLD_OR * 16 + ELEM_U8: return fold_task<u8>(task, FoldOr());
    // Sums wrap, so that signed and unsigned ones are the same.
    case FOLD_SUM * 16 + ELEM_U8:
    case FOLD_SUM * 16 + ELEM_I8: return fold_sum<u8>(task);
    case FOLD_SUM * 16 + ELEM_U16:
    case FOLD_SUM * 16 + ELEM_I16: return fold_sum<u16>(task);
    case FOLD_SUM * 16 + ELEM_U32:
    case FOLD_SUM * 16 + ELEM_I32: return fold_sum<u32>(task);
    case FOLD_SUM * 16 + ELEM_U64:
    case FOLD_SUM * 16 + ELEM_I64: return fold_sum<u64>(task);
    case FOLD_SUM * 16 + ELEM_I128: return fold_sum<u128>(task);
    case FOLD_SUM * 16 + ELEM_F64:
      return fold_task<u64>(task, [](u64 a, u64 b) { return fold_bits(word_f64(a) + word_f64(b)); });
    case FOLD_MIN * 16 + ELEM_U8: return fold_min<u8>(task);
    case FOLD_MIN * 16 + ELEM_U16: return fold_min<u16>(task);
    case FOLD_MIN * 16 + ELEM_U32: return fold_min<u32>(task);
    case FOLD_MIN * 16 + ELEM_U64: return fold_min<u64>(task);
    case FOLD_MIN * 16 + ELEM_I8: return fold_min<i8>(task);
    case FOLD_MIN * 16 + ELEM_I16: return fold_min<i16>(task);
    case FOLD_MIN * 16 + ELEM_I32: return fold_min<i32>(task);
    case FOLD_MIN * 16 + ELEM_I64: return fold_min<i64>(task);
    case FOLD_MIN * 16 + ELEM_I128: return fold_min<i128>(task);
    case FOLD_MIN * 16 + ELEM_F64:
      return fold_task<u64>(task, [](u64 a, u64 b) { return fold_order(b) < fold_order(a) ? b : a; });
    case FOLD_MAX * 16 + ELEM_U8: return fold_max<u8>(task);
    case FOLD_MAX * 16 + ELEM_U16: return fold_max<u16>(task);
    case FOLD_MAX * 16 + ELEM_U32: return fold_max<u32>(task);
    case FOLD_MAX * 16 + ELEM_U64: return fold_max<u64>(task);
    case FOLD_MAX * 16 + ELEM_I8: return fold_max<i8>(task);
    case FOLD_MAX * 16 + ELEM_I16: return fold_max<i16>(task);
    case FOLD_MAX * 16 + ELEM_I32: return fold_max<i32>(task);
    case FOLD_MAX * 16 + ELEM_I64: return fold_max<i64>(task);
    case FOLD_MAX * 16 + ELEM_I128: return fold_max<i128>(task);
    case FOLD_MAX * 16 + ELEM_F64:
      return fold_task<u64>(task, [](u64 a, u64 b) { return fold_order(b) > fold_order(a) ? b : a; });
  }
}

extern "C" __global__ void dkb_exchange(u64 count, const ExchangeTask* tasks) {
  for (u64 i = 0; i < count; ++i) {
    const ExchangeTask task = tasks[i];
    fold(task);
  }
}

extern "C" __global__ void dkb_mark(u64 count, const MarkTask* tasks) {
  for (u64 k = 0; k < count; ++k) {
    const MarkTask task = tasks[k];
    const ExchangeWord* words = (const ExchangeWord*)task.data;
    DKB_ROWS(i, task.bytes / 16) {
      const ExchangeWord word = words[i];
      if (word.low != task.idle[0] || word.high != task.idle[1]) mark(task.marks, 16 * i);
    }
    DKB_ROWS(i, task.bytes % 16 ? 1 : 0) mark(task.marks, task.bytes - 1);
  }
}
