// Decompression: Snappy and LZ4.
//
// A warp a page, in batches. Compressed bytes are a chain of units, each a literal, a copy of earlier output, or
// one after the other; where a unit begins is known only from the one before it. So a window of bytes is staged,
// and
//  1. every position is read as if a unit began there; within each segment of 16 positions, going backwards, it
//     is found where a chain through that position leaves the segment;
//  2. one lane follows these exits from segment to segment, 32 steps at most;
//  3. each lane walks the units of its own segment, sums make output positions, and the pieces (literals and
//     copies) are listed;
//  4. output is made a row of one byte a lane at a time: a bitmap of beginnings tells each byte its piece. A byte
//     that equals an earlier one of its own row points to that lane, and pointers are followed in doubling steps.
// A unit that does not fit a window, and is always the first of its own, is copied by the whole warp. So is every
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

// In `exit`: the chain stops at this position.
#define HALT 0x8000u
// In `entry`: no unit begins in the segment.
#define NOWHERE 0xffffu
// In `piece`: a copy, with its distance; else a literal, with its place in the window relative to its place in
// the output, biased.
#define COPIED 0x80000000u
#define BIAS 0x40000000u
// Of a byte of output: it is known; else it is the lane of the row that has the same.
#define KNOWN 0x100u

// What a warp shares.
struct alignas(16) Unpacker {
  u32 window[WINDOW / 4 + 4];
  union {
    u16 exit[WINDOW];
    u8 output[ROOM + 32];
  };
  u32 piece[WINDOW / 2];
  u32 starts[ROOM / 32];
  u16 entry[SEGMENTS];
  u32 consumed, produced;
};

// A unit: `step` bytes, or 0 if it does not fit; a literal that begins `literal_at` bytes in; then a copy.
struct Unit {
  u32 step, literal_at, literal, copy, distance;
};

struct SnappyUnits {
  // The unit at `from`, which begins with `tag` and has `room` bytes.
  DKB_MEMBER static Unit read(u32 tag, const u8* from, u32 room, bool) {
    Unit unit = {0, 0, 0, 0, 0};
    u32 kind = tag & 3, n = tag >> 2;
    if (kind == 0) {
      u32 head = 1;
      if (n >= 60) {
        head = n - 58;
        n = u32_at(from + 1) & (~0u >> (40 - 8 * head));
      }
      if (head < room && n < room - head) unit = Unit{head + n + 1, head, n + 1, 0, 0};
      return unit;
    }
    u32 size = copy_size(kind);
    if (size > room) return unit;
    u32 distance = u32_at(from + 1) & (~0u >> (40 - 8 * size));
    if (kind == 1) return Unit{size, 0, 0, 4 + (n & 7), n >> 3 << 8 | distance};
    return Unit{size, 0, 0, n + 1, distance};
  }

  // The step of the unit at `from`, or 0 if it does not fit a batch of `room` bytes.
  DKB_MEMBER static u32 step(u32 tag, const u8* from, u32 room, bool last) {
    u32 kind = tag & 3, size = kind == 0 ? (tag >> 2) + 2 : copy_size(kind);
    if (kind == 0 && tag >= 240) size = read(tag, from, room, last).step;
    return size <= room ? size : 0;
  }

  // Bytes of a copy: 2, 3 or 5.
  DKB_MEMBER static u32 copy_size(u32 kind) { return 0x5320u >> (4 * kind) & 15; }
};

struct Lz4Units {
  // `last`: the bytes end with the block, whose last unit has no copy.
  DKB_MEMBER static Unit read(u32 token, const u8* from, u32 room, bool last) {
    Unit unit = {0, 0, 0, 0, 0};
    u32 at = 1, literal = token >> 4, copy = token & 15;
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

  // As `read`, for a batch.
  DKB_COLD u32 step(u32 token, const u8* from, u32 room, bool last) {
    Unit unit = read(token, from, room, last);
    return u64(unit.literal) + unit.copy <= ROOM ? unit.step : 0;
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

// Where `exit` has a position: lanes at the same place of their segments use different banks.
DKB_FN u32 exit_slot(u32 p) { return p % SEGMENT * SEGMENTS + p / SEGMENT; }

// The bytes of `from` up to `limit` into the window, zeros behind them.
DKB_FN void stage_window(Unpacker& s, const u8* from, u32 limit) {
  for (u32 k = Warp::lane(); k < WINDOW / 4 + 4; k += Warp::LANES) {
    u32 word = 4 * k < limit ? u32_at(from + 4 * k) : 0;
    if (4 * k < limit && limit - 4 * k < 4) word &= ~0u >> (32 - 8 * (limit - 4 * k));
    s.window[k] = word;
  }
  for (u32 k = Warp::lane(); k < ROOM / 32; k += Warp::LANES) s.starts[k] = 0;
  for (u32 k = Warp::lane(); k < SEGMENTS; k += Warp::LANES) s.entry[k] = NOWHERE;
}

// Steps 1 and 2.
template <class Units> DKB_FN void find_units(Unpacker& s, u32 limit, bool last) {
  const u8* w = (const u8*)s.window;
  for (u32 segment = Warp::lane(); segment < SEGMENTS; segment += Warp::LANES) {
    Words bytes = ((const Words*)s.window)[segment];
#pragma unroll
    for (u32 k = SEGMENT; k-- > 0;) {
      u32 p = segment * SEGMENT + k, tag = bytes.word[k / 4] >> (8 * (k % 4)) & 255, exit = HALT | p;
      if (p < limit) {
        u32 step = Units::step(tag, w + p, limit - p, last);
        if (step != 0) exit = k + step < SEGMENT ? s.exit[exit_slot(p + step)] : p + step;
      }
      s.exit[exit_slot(p)] = u16(exit);
    }
  }
  Warp::sync();
  if (Warp::lane() == 0) {
    u32 p = 0;
    while (p < limit) {
      s.entry[p / SEGMENT] = u16(p);
      p = s.exit[exit_slot(p)];
      if (p & HALT) break;
    }
    s.consumed = p & ~HALT;
  }
  Warp::sync();
}

// Calls `visit` with position and content of each unit of this lane that begins before `stop`, in order, until it
// says no.
template <class Units, class F>
DKB_FN void visit_units(const Unpacker& s, u32 limit, bool last, u32 stop, F visit) {
  const u8* w = (const u8*)s.window;
  Piece segments = piece_of<Warp>(SEGMENTS);
  for (u32 segment = segments.begin; segment < segments.end; ++segment) {
    u32 p = s.entry[segment], end = least((segment + 1) * SEGMENT, stop);
    while (p < end) {
      Unit unit = Units::read(w[p], w + p, limit - p, last);
      if (!visit(p, unit)) return;
      p += unit.step;
    }
  }
}

// Step 3: lists the pieces of the units, as far as their output fits. False if a copy is from nowhere. `out` bytes
// were produced before.
template <class Units> DKB_FN bool list_pieces(Unpacker& s, u32 limit, bool last, u32 out) {
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
DKB_FN void write_pieces(Unpacker& s, u8* to) {
  const u8* w = (const u8*)s.window;
  const u32 produced = s.produced, lane = Warp::lane();
  u32 begun = 0;
  for (u32 row = 0; row < produced; row += Warp::LANES) {
    const u32 p = row + lane;
    const u32 starts = s.starts[row / 32] >> (row % 32) & (~0u >> (32 - Warp::LANES));
    const u32 piece = s.piece[begun + u32(bit_count(starts & (~0u >> (31 - lane)))) - 1];
    const u32 distance = piece & ~COPIED;
    begun += u32(bit_count(starts));
    u32 byte;
    if (!(piece & COPIED)) byte = KNOWN | w[p + piece - BIAS];
    else if (distance > p) byte = KNOWN | to[i64(p) - i64(distance)];
    else if (distance > lane) byte = KNOWN | s.output[p - distance];
    else byte = lane - distance;
    while (Warp::any(!(byte & KNOWN))) {
      u32 other = Warp::of(byte, byte % Warp::LANES);
      if (!(byte & KNOWN)) byte = other;
    }
    s.output[p] = u8(byte);
    if (p < produced) to[p] = u8(byte);
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

// Decompresses one chain of units. True if it fills the output exactly.
template <class Units> DKB_FN bool unpack(Unpacker& s, const u8* from, u32 bytes, u8* to, u32 plain_bytes) {
  // A distance must leave room for the bit that marks it.
  if (plain_bytes >= COPIED) return false;
  u32 in = 0, out = 0;
  while (in < bytes) {
    if (DKB_BATCHES) {
      u32 limit = least(WINDOW, bytes - in);
      bool last = limit == bytes - in;
      prefetch(from + least(bytes - 1, in + WINDOW + Warp::lane() * SEGMENT));
      stage_window(s, from + in, limit);
      Warp::sync();
      find_units<Units>(s, limit, last);
      if (s.consumed != 0) {
        if (!list_pieces<Units>(s, limit, last, out) || s.produced > plain_bytes - out) return false;
        write_pieces(s, to + out);
        in += s.consumed, out += s.produced;
        // All lanes have read what the next batch overwrites.
        Warp::sync();
        continue;
      }
    }
    Unit unit = Units::read(from[in], from + in, bytes - in, true);
    u32 room = plain_bytes - out;
    if (unit.step == 0 || unit.literal > room || unit.copy > room - unit.literal) return false;
    copy_bytes(to + out, from + in + unit.literal_at, unit.literal);
    out += unit.literal;
    if (unit.copy != 0) {
      if (unit.distance == 0 || unit.distance > out) return false;
      Warp::sync();
      repeat_bytes(to + out, unit.distance, unit.copy);
      out += unit.copy;
    }
    in += unit.step;
    Warp::sync();
  }
  return out == plain_bytes;
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

// Decompresses pages, a warp a page; `next` counts the pages taken.
extern "C" __global__ void __launch_bounds__(256, 5)
    dkb_decompress(u64 count, const PageInput* pages, u64* next, u64* error) {
  __shared__ Unpacker shared[WARPS];
  Unpacker& s = shared[warp_of_block()];
  for (;;) {
    u64 taken = Warp::lane() == 0 ? atomic_add(next, u64(1)) : 0;
    taken = Warp::of(taken, 0);
    if (taken >= count) return;
    const PageInput page = pages[taken];
    bool good = false;
    if (page.codec == SNAPPY) good = unpack_snappy(s, page.from, page.bytes, page.to, page.plain_bytes);
    if (page.codec == LZ4 || page.codec == LZ4_RAW) {
      good = unpack_lz4(s, page.from, page.bytes, page.to, page.plain_bytes, page.codec == LZ4);
    }
    if (!good && Warp::lane() == 0) report(error, page.task, BAD_COMPRESSED);
    Warp::sync();
  }
}
