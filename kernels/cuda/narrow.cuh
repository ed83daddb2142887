// Rows of a result that may be among the first of an order, beside dkb.cuh.
//
// Values of the order's first column fall into buckets of equal width. What matters are the buckets that together
// hold the rows that are wanted, and those before them.

#define NARROW_BUCKETS 4096

// NULLs have the first or the last bucket to themselves; all other rows have at most this many.
#define NARROW_SHARES 2048

enum { ELEM_U8, ELEM_U16, ELEM_U32, ELEM_U64, ELEM_I8, ELEM_I16, ELEM_I32, ELEM_I64, ELEM_I128, ELEM_F64 };

// Zero at first. Mirrored by narrow.rs.
struct Narrow {
  u64 found;          // rows listed, or that would have been
  u64 not_low, high;  // complement of the smallest, and the largest place of rows that are not NULL
  u64 reached;        // rows in the buckets that have been looked at
  u64 buckets;        // how many buckets matter
  u32 counts[NARROW_BUCKETS];
};

static_assert(sizeof(Narrow) == 40 + 4 * NARROW_BUCKETS, "the size that the runtime writes");

// How rows are ordered.
struct NarrowOrder {
  const u8* values;
  const u8* valid;  // or null
  u32 elem;
  bool descending, nulls_first;

  DKB_MEMBER NarrowOrder(const u8* values, const u8* valid, u64 how)
      : values(values), valid(valid), elem(u32(how) & 15), descending(how & 16), nulls_first(how & 32) {}

  DKB_MEMBER bool is_null(u64 i) const { return valid != nullptr && !valid[i]; }

  // A number that orders as the value of row `i` does.
  DKB_MEMBER u64 place(u64 i) const {
    const u64 sign = 1ull << 63;
    switch (elem) {
      case ELEM_U8: return values[i];
      case ELEM_U16: return ((const u16*)values)[i];
      case ELEM_U32: return ((const u32*)values)[i];
      case ELEM_U64: return ((const u64*)values)[i];
      case ELEM_I8: return u64(i64(((const i8*)values)[i])) ^ sign;
      case ELEM_I16: return u64(i64(((const i16*)values)[i])) ^ sign;
      case ELEM_I32: return u64(i64(((const i32*)values)[i])) ^ sign;
      case ELEM_F64: {
        const u64 bits = ((const u64*)values)[i];
        return bits & sign ? ~bits : bits | sign;
      }
      default: return ((const u64*)values)[i] ^ sign;
    }
  }
};

// The bucket of each row.
struct NarrowBuckets {
  NarrowOrder order;
  u64 low, high;
  u32 shift;

  DKB_MEMBER NarrowBuckets(const NarrowOrder& order, const Narrow* s)
      : order(order), low(~s->not_low), high(s->high), shift(0) {
    while (low < high && (high - low) >> shift >= NARROW_SHARES) ++shift;
  }

  DKB_MEMBER u32 of(u64 i) const {
    if (order.is_null(i)) return order.nulls_first ? 0 : NARROW_BUCKETS - 1;
    const u64 place = order.place(i);
    return 1 + u32((order.descending ? high - place : place - low) >> shift);
  }
};

extern "C" __global__ void dkb_narrow_bounds(u64 rows, const u8* values, const u8* valid, u64 how, Narrow* s) {
  const NarrowOrder order(values, valid, how);
  u64 not_low = 0, high = 0;
  DKB_ROWS(i, rows) {
    if (order.is_null(i)) continue;
    const u64 place = order.place(i);
    not_low = ~place > not_low ? ~place : not_low;
    high = place > high ? place : high;
  }
  block_max(&s->not_low, not_low);
  block_max(&s->high, high);
}

extern "C" __global__ void dkb_narrow_count(u64 rows, const u8* values, const u8* valid, u64 how, Narrow* s) {
  const NarrowBuckets buckets(NarrowOrder(values, valid, how), s);
  DKB_ROWS(i, rows) atomic_add(s->counts + buckets.of(i), 1u);
}

// One block.
extern "C" __global__ void dkb_narrow_cut(u64 wanted, Narrow* s) {
  DKB_TILES(first, NARROW_BUCKETS) {
    const u64 bucket = first + block_thread();
    const u32 count = s->counts[bucket];
    const u64 before = block_place(count, [=](u64 sum) {
      const u64 reached = s->reached;
      s->reached = reached + sum;
      return reached;
    });
    if (before < wanted && before + count >= wanted) s->buckets = bucket + 1;
  }
}

extern "C" __global__ void dkb_narrow_rows(u64 rows, const u8* values, const u8* valid, u64 how, Narrow* s,
                                           u64 room, u32* out) {
  const NarrowBuckets buckets(NarrowOrder(values, valid, how), s);
  // All of them, if fewer rows are here than are wanted.
  const u64 matter = s->buckets ? s->buckets : NARROW_BUCKETS;
  DKB_ROWS(i, rows) {
    if (buckets.of(i) >= matter) continue;
    const u64 at = append(&s->found);
    if (at < room) out[at] = u32(i);
  }
}
