// Decompression: Snappy and LZ4.
//
// Two warps a page, in batches: one is a batch ahead and says what the other is to write. Compressed bytes are a
// chain of units, each a literal, a copy of earlier output, or one after the other; where a unit begins is known
// only from the one before it. So a window of bytes is staged, and
//  1. every position is read as if a unit began there; within each segment of 16 positions, going backwards, it
//     is found where a chain through that position leaves the segment;
//  2. one lane follows these exits from segment to segment, 32 steps at most;
//  3. each lane walks the units of its own segment, sums make output positions, and the pieces (literals and
//     copies) are listed;
//  4. output is made a row of two bytes a lane at a time: a bitmap of beginnings tells each byte its piece. A byte
//     that equals an earlier one of its own row points to that one, and pointers are followed in doubling steps.
// A unit that does not fit a window, and is always the first of its own, is copied by a whole warp. So is every
// unit where a warp has one lane and batches gain nothing, unless DKB_BATCHES asks for them.
#ifndef DKB_BATCHES
#define DKB_BATCHES (Warp::LANES > 1)
#endif

// Compressed bytes of a window; a segment a lane of a warp.
#define WINDOW 512
#define SEGMENT 16
#define SEGMENTS (WINDOW / SEGMENT)
// Output bytes of a batch at most.
#define ROOM 1024
// Bytes of a unit of a batch at most: an exit fits a byte.
#define LONGEST (256 - SEGMENT)

// In `entry`: no unit begins in the segment.
#define NOWHERE 0xffffu
// In `piece`: a copy, with its distance; else a literal, with its place in the window relative to its place in
// the output, biased.
#define COPIED 0x80000000u
#define BIAS 0x40000000u
// Of a byte of output: it is known; else it is the place in the row that has the same.
#define KNOWN 0x100u

// A unit: `step` bytes, or 0 if it does not fit; a literal that begins `literal_at` bytes in; then a copy.
struct Unit {
  u32 step, literal_at, literal, copy, distance;
};

enum BatchKind { BATCH_PIECES, BATCH_UNIT, BATCH_END, BATCH_BAD };

// What is to be written next: the listed pieces, or a unit that begins `at` the compressed bytes.
struct alignas(16) Batch {
  u32 window[WINDOW / 4 + 4];
  u32 piece[WINDOW / 2];
  u32 starts[ROOM / 32];
  u16 entry[SEGMENTS];
  u32 kind, consumed, produced, at;
  Unit unit;
};

// What the warps of a page share.
struct Unpacker {
  Batch batch[2];
  // By position of the batch being read: where the chain through it leaves the segment, from the segment's
  // beginning; if that is inside, the chain stops there.
  Words exit[SEGMENTS];
  // Of the batch being written.
  u8 output[ROOM];
};

struct SnappyUnits {
  // The unit at `from`, which has `room` bytes.
  DKB_MEMBER static Unit read(const u8* from, u32 room, bool) {
    const u32 head = u32_at(from), kind = head & 3, n = head >> 2 & 63;
    Unit unit = {copy_size(kind), 0, 0, n + 1, head >> 8 & 0xffff};
    if (kind == 1) unit.copy = 4 + (n & 7), unit.distance = n >> 3 << 8 | (head >> 8 & 255);
    if (kind == 3) unit.distance = u32_at(from + 1);
    if (kind == 0) {
      u32 size = n < 60 ? 1 : n - 58, length = n;
      if (n >= 60) length = u32_at(from + 1) & (~0u >> (40 - 8 * size));
      unit = Unit{size + length + 1, size, length + 1, 0, 0};
      if (size >= room || length >= room - size) unit.step = 0;
    }
    if (unit.step > room) unit.step = 0;
    return unit;
  }

  // The step of the unit that begins with the bytes of `head`, if it is one for a batch; else 0.
  DKB_MEMBER static u32 step(u32 head, const u8*, u32 room, bool) {
    const u32 kind = head & 3, n = head >> 2 & 63, size = n < 60 ? n + 2 : n == 60 ? (head >> 8 & 255) + 3 : 0;
    const u32 step = kind == 0 ? size : copy_size(kind);
    return step <= least(room, LONGEST) ? step : 0;
  }

  // Bytes of a copy: 2, 3 or 5.
  DKB_MEMBER static u32 copy_size(u32 kind) { return 0x5320u >> (4 * kind) & 15; }
};

struct Lz4Units {
  // `last`: the bytes end with the block, whose last unit has no copy.
  DKB_MEMBER static Unit read(const u8* from, u32 room, bool last) {
    Unit unit = {0, 0, 0, 0, 0};
    u32 token = from[0], at = 1, literal = token >> 4, copy = token & 15;
    if (literal == 15 && !extend(from, room, &at, &literal)) return unit;
    if (literal > room - at) return unit;
    unit.literal_at = at;
    unit.literal = literal;
    at += literal;
    if (at == room && last) {
      unit.step = at;
      return unit;
    }
    if (room - at < 2) return unit;
    unit.distance = from[at] | u32(from[at + 1]) << 8;
    at += 2;
    if (copy == 15 && !extend(from, room, &at, &copy)) return unit;
    unit.copy = copy + 4;
    unit.step = at;
    return unit;
  }

  // The step of the unit at `from`, if it is one for a batch; else 0.
  DKB_COLD u32 step(u32, const u8* from, u32 room, bool last) {
    Unit unit = read(from, room, last);
    return u64(unit.literal) + unit.copy <= ROOM && unit.step <= LONGEST ? unit.step : 0;
  }

  // Adds the bytes that continue a length; all but the last are 255.
  DKB_MEMBER static bool extend(const u8* from, u32 room, u32* at, u32* length) {
    while (*at < room && *length < 0x7fffff00u) {
      u32 more = from[(*at)++];
      *length += more;
      if (more != 255) return true;
    }
    return false;
  }
};

// The bytes of `from` up to `limit` into the window, zeros behind them.
DKB_FN void stage_window(Batch& s, const u8* from, u32 limit) {
  for (u32 k = Warp::lane(); k < WINDOW / 4 + 4; k += Warp::LANES) {
    u32 word = 4 * k < limit ? u32_at(from + 4 * k) : 0;
    if (4 * k < limit && limit - 4 * k < 4) word &= ~0u >> (32 - 8 * (limit - 4 * k));
    s.window[k] = word;
  }
  for (u32 k = Warp::lane(); k < ROOM / 32; k += Warp::LANES) s.starts[k] = 0;
  for (u32 k = Warp::lane(); k < SEGMENTS; k += Warp::LANES) s.entry[k] = NOWHERE;
}

// Steps 1 and 2.
template <class Units> DKB_FN void find_units(Batch& s, Words* exit_of, u32 limit, bool last) {
  const u8* w = (const u8*)s.window;
  for (u32 segment = Warp::lane(); segment < SEGMENTS; segment += Warp::LANES) {
    const Words bytes = ((const Words*)s.window)[segment];
    const u32 begin = segment * SEGMENT, behind = s.window[(begin + SEGMENT) / 4];
    u64 exits[2] = {0, 0};
#pragma unroll
    for (u32 k = SEGMENT; k-- > 0;) {
      const u32 low = bytes.word[k / 4], high = k / 4 < 3 ? bytes.word[(k / 4 + 1) % 4] : behind;
      const u32 p = begin + k, head = funnel(low, high, 8 * (k % 4));
      const u32 next = k + (p < limit ? Units::step(head, w + p, limit - p, last) : 0);
      // Where no unit fits, the chain stops.
      u32 exit = next;
      if (next > k && next < SEGMENT) exit = u32((next < 8 ? exits[0] : exits[1]) >> (8 * (next % 8))) & 255;
      exits[k / 8] |= u64(exit) << (8 * (k % 8));
    }
    exit_of[segment] = Words{{u32(exits[0]), u32(exits[0] >> 32), u32(exits[1]), u32(exits[1] >> 32)}};
  }
  Warp::sync();
  if (Warp::lane() == 0) {
    const u8* exits = (const u8*)exit_of;
    u32 p = 0, exit = SEGMENT;
    while (p < limit && exit >= SEGMENT) {
      s.entry[p / SEGMENT] = u16(p);
      exit = exits[p];
      p = p / SEGMENT * SEGMENT + exit;
    }
    s.consumed = p;
  }
  Warp::sync();
}

// Calls `visit` with position and content of each unit of this lane that begins before `stop`, in order, until it
// says no.
template <class Units, class F>
DKB_FN void visit_units(const Batch& s, u32 limit, bool last, u32 stop, F visit) {
  const u8* w = (const u8*)s.window;
  Piece segments = piece_of<Warp>(SEGMENTS);
  for (u32 segment = segments.begin; segment < segments.end; ++segment) {
    u32 p = s.entry[segment], end = least((segment + 1) * SEGMENT, stop);
    while (p < end) {
      Unit unit = Units::read(w + p, limit - p, last);
      if (!visit(p, unit)) return;
      p += unit.step;
    }
  }
}

// Step 3: lists the pieces of the units, as far as their output fits. False if a copy is from nowhere. `out` bytes
// were produced before.
template <class Units> DKB_FN bool list_pieces(Batch& s, u32 limit, bool last, u32 out) {
  const u32 stop = s.consumed, pieces_bit = 20, bytes_mask = (1u << pieces_bit) - 1;
  u32 sum = 0, total;
  visit_units<Units>(s, limit, last, stop, [&](u32, const Unit& unit) {
    sum += (u32(unit.literal != 0) + u32(unit.copy != 0)) << pieces_bit;
    sum += unit.literal + unit.copy;
    return true;
  });
  u32 place = Warp::before(sum, &total), piece = place >> pieces_bit, at = place & bytes_mask;
  bool good = true;
  // All lanes have read what one of them may now change.
  Warp::sync();
  if (Warp::lane() == 0 && (total & bytes_mask) <= ROOM) s.produced = total & bytes_mask;
  visit_units<Units>(s, limit, last, stop, [&](u32 p, const Unit& unit) {
    if (at + unit.literal + unit.copy > ROOM) {
      // The first unit that is too much is the one to begin the next batch with.
      if (at <= ROOM) s.consumed = p, s.produced = at;
      return false;
    }
    if (unit.literal != 0) {
      atomic_or(s.starts + at / 32, 1u << (at % 32));
      s.piece[piece++] = BIAS + p + unit.literal_at - at;
      at += unit.literal;
    }
    if (unit.copy != 0) {
      good &= unit.distance != 0 && unit.distance <= out + at;
      atomic_or(s.starts + at / 32, 1u << (at % 32));
      s.piece[piece++] = COPIED | unit.distance;
      at += unit.copy;
    }
    return true;
  });
  Warp::sync();
  return !Warp::any(!good);
}

// Step 4: the batch's output, `to` being where it begins.
DKB_FN void write_pieces(const Batch& s, u8* output, u8* to) {
  const u8* w = (const u8*)s.window;
  const u32 produced = s.produced, lane = Warp::lane();
  u32 begun = 0;
  for (u32 row = 0; row < produced; row += 2 * Warp::LANES) {
    u32 byte[2];
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
      const u32 place = k * Warp::LANES + lane, first = row + k * Warp::LANES, p = row + place;
      byte[k] = KNOWN;
      if (first >= produced) continue;
      const u32 starts = s.starts[first / 32] >> (first % 32) & (~0u >> (32 - Warp::LANES));
      const u32 piece = s.piece[begun + u32(bit_count(starts & (~0u >> (31 - lane)))) - 1];
      const u32 distance = piece & ~COPIED;
      begun += u32(bit_count(starts));
      // One load, wherever it is from.
      const u8* from = w + (p + piece - BIAS);
      if (piece & COPIED) from = distance > p ? to + (i64(p) - i64(distance)) : output + (p - distance);
      if ((piece & COPIED) && distance <= place) byte[k] = place - distance;
      else if (p < produced) byte[k] = KNOWN | *from;
    }
    while (Warp::any(!(byte[0] & byte[1] & KNOWN))) {
      const u32 a = byte[0], b = byte[1];
#pragma unroll
      for (u32 k = 0; k < 2; ++k) {
        const u32 place = byte[k] % (2 * Warp::LANES), other = place % Warp::LANES;
        const u32 low = Warp::of(a, other), high = Warp::of(b, other);
        if (!(byte[k] & KNOWN)) byte[k] = place < Warp::LANES ? low : high;
      }
    }
#pragma unroll
    for (u32 k = 0; k < 2; ++k) {
      const u32 p = row + k * Warp::LANES + lane;
      if (p < produced) output[p] = to[p] = u8(byte[k]);
    }
    Warp::sync();
  }
}

// Copies `n` bytes from `distance` in front of `to`, where they may overlap; a warp takes part.
DKB_FN void repeat_bytes(u8* to, u32 distance, u32 n) {
  const u8* pattern = to - distance;
  if (Warp::LANES == 1) {
    for (u32 i = 0; i < n; ++i) to[i] = pattern[i];
  } else {
    for (u32 i = Warp::lane(); i < n; i += Warp::LANES) to[i] = pattern[i % distance];
  }
}

// Says in `batch` what comes next. `in` bytes are read and `out` bytes written before it.
template <class Units>
DKB_FN void read_batch(Unpacker& s, Batch& batch, const u8* from, u32 bytes, u32 plain_bytes, u32* in, u32* out) {
  const u32 limit = least(WINDOW, bytes - *in), room = plain_bytes - *out;
  const bool last = limit == bytes - *in;
  u32 kind = limit > 0 ? BATCH_UNIT : room == 0 ? BATCH_END : BATCH_BAD;
  if (DKB_BATCHES && limit > 0) {
    prefetch(from + least(bytes - 1, *in + WINDOW + Warp::lane() * SEGMENT));
    stage_window(batch, from + *in, limit);
    Warp::sync();
    find_units<Units>(batch, s.exit, limit, last);
    if (batch.consumed != 0) {
      const bool good = list_pieces<Units>(batch, limit, last, *out) && batch.produced <= room;
      kind = good ? BATCH_PIECES : BATCH_BAD;
      *in += batch.consumed, *out += batch.produced;
    }
  }
  if (kind == BATCH_UNIT) {
    const Unit unit = Units::read(from + *in, bytes - *in, true);
    bool good = unit.step != 0 && unit.literal <= room && unit.copy <= room - unit.literal;
    good &= unit.copy == 0 || (unit.distance != 0 && unit.distance <= *out + unit.literal);
    if (!good) kind = BATCH_BAD;
    if (Warp::lane() == 0) batch.unit = unit, batch.at = *in;
    *in += unit.step, *out += unit.literal + unit.copy;
  }
  if (Warp::lane() == 0) batch.kind = kind;
}

// Writes what `batch` says to `to`. Gives the bytes.
DKB_FN u32 write_batch(Unpacker& s, const Batch& batch, const u8* from, u8* to) {
  if (batch.kind == BATCH_PIECES) {
    write_pieces(batch, s.output, to);
    return batch.produced;
  }
  const Unit unit = batch.unit;
  copy_bytes(to, from + batch.at + unit.literal_at, unit.literal);
  if (unit.copy != 0) {
    Warp::sync();
    repeat_bytes(to + unit.literal, unit.distance, unit.copy);
  }
  // A later batch may copy what was written here.
  Warp::sync();
  return unit.literal + unit.copy;
}

// Decompresses one chain of units. True if it fills the output exactly.
template <class Units> DKB_FN bool unpack(Unpacker& s, const u8* from, u32 bytes, u8* to, u32 plain_bytes) {
  // A distance must leave room for the bit that marks it.
  if (plain_bytes >= COPIED) return false;
  u32 in = 0, out = 0, written = 0, kind;
  for (u32 turn = 0;; ++turn) {
    Batch& next = s.batch[turn % 2];
    const Batch& ready = s.batch[(turn + 1) % 2];
    if (Pair::first()) read_batch<Units>(s, next, from, bytes, plain_bytes, &in, &out);
    if (Pair::second() && turn > 0) written += write_batch(s, ready, from, to + written);
    Pair::sync();
    kind = next.kind;
    if (kind == BATCH_END || kind == BATCH_BAD) break;
  }
  // Both have seen the end before the next chain's beginning takes its place.
  Pair::sync();
  return kind == BATCH_END;
}

DKB_COLD bool unpack_snappy(Unpacker& s, const u8* from, u32 bytes, u8* to, u32 plain_bytes) {
  u64 stated = 0;
  for (u32 at = 0; at < 5 && at < bytes; ++at) {
    stated |= u64(from[at] & 127) << (7 * at);
    if (from[at] < 128) {
      if (stated != plain_bytes) return false;
      return unpack<SnappyUnits>(s, from + at + 1, bytes - at - 1, to, plain_bytes);
    }
  }
  return false;
}

DKB_FN u32 big_endian_u32(const u8* p) { return u32(p[0]) << 24 | u32(p[1]) << 16 | u32(p[2]) << 8 | p[3]; }

// Blocks of LZ4: in frames of plain size, compressed size and a block each if that adds up and `framed` allows it.
DKB_COLD bool unpack_lz4(Unpacker& s, const u8* from, u32 bytes, u8* to, u32 plain_bytes, bool framed) {
  u32 at = 0, plain = 0;
  while (framed && at < bytes) {
    framed = bytes - at >= 8 && big_endian_u32(from + at + 4) <= bytes - at - 8 &&
             big_endian_u32(from + at) <= plain_bytes - plain;
    if (!framed) break;
    plain += big_endian_u32(from + at);
    at += 8 + big_endian_u32(from + at + 4);
  }
  framed &= plain == plain_bytes;
  for (at = 0, plain = 0; at < bytes;) {
    u32 frame_plain = framed ? big_endian_u32(from + at) : plain_bytes;
    u32 frame = framed ? big_endian_u32(from + at + 4) : bytes;
    at += framed ? 8 : 0;
    if (!unpack<Lz4Units>(s, from + at, frame, to + plain, frame_plain)) return false;
    at += frame, plain += frame_plain;
  }
  return plain == plain_bytes;
}

// Decompresses pages, a block a page, so that the longest spread over all multiprocessors.
extern "C" __global__ void __launch_bounds__(64, 16)
    dkb_decompress(u64 count, const PageInput* pages, u64* error) {
  __shared__ Unpacker s;
  for (u64 at = block_index(); at < count; at += block_count()) {
    const PageInput page = pages[at];
    // Read as part of words, but never used.
    if (Pair::second()) {
      for (u32 k = Warp::lane(); k < 8; k += Warp::LANES) page.to[page.plain_bytes + k] = 0;
    }
    bool good = false;
    if (page.codec == SNAPPY) good = unpack_snappy(s, page.from, page.bytes, page.to, page.plain_bytes);
    if (page.codec == LZ4 || page.codec == LZ4_RAW) {
      good = unpack_lz4(s, page.from, page.bytes, page.to, page.plain_bytes, page.codec == LZ4);
    }
    if (!good && Pair::first() && Warp::lane() == 0) report(error, page.task, BAD_COMPRESSED);
  }
}
