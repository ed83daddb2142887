// Packed integers, and texts with their lengths: what is found by one lane and unpacked by all.
//
// Run-length and bit-packed runs, and the miniblocks of differences, are all stretches of integers of one width to
// which one number is added. One lane parses a batch of their headers, all lanes unpack.

// Stretches of a batch.
#define RUNS 32
// No page has more values.
#define MOST_VALUES 0x7fffffffu

struct Runs {
  const u8* bytes;
  u32 at, end;  // what is to be parsed
  u32 width;    // of run-length and bit-packed runs
  u32 miniblock, miniblocks, differences;  // of differences: values of each, how many a block, those left
  u32 count;
  u32 start[RUNS + 1];  // index of the first value; that of the last ends the batch
  u32 from[RUNS], bits[RUNS];
  u64 add[RUNS];
  u64 sum;  // of the differences so far
};

DKB_FN void begin_runs(Runs& r, const u8* bytes, u32 at, u32 end, u32 width) {
  r.bytes = bytes, r.at = at, r.end = end, r.width = width, r.miniblocks = 0;
  r.count = 0, r.start[0] = 0;
}

DKB_FN void push_run(Runs& r, u64 values, u32 from, u32 bits, u64 add) {
  u32 k = r.count, room = MOST_VALUES - r.start[k];
  if (values == 0 || room == 0) return;
  r.from[k] = from, r.bits[k] = bits, r.add[k] = add;
  r.start[k + 1] = r.start[k] + (values < room ? u32(values) : room);
  r.count = k + 1;
}

// What is left to parse, in registers of the one lane that does.
struct Cursor {
  const u8* bytes;
  u32 at, end;

  DKB_MEMBER u32 left() const { return end - at; }
  DKB_MEMBER void skip(u64 n) { at += n < left() ? u32(n) : left(); }
  // A number of 7 bits a byte; at the end of the bytes it is cut off.
  DKB_MEMBER u64 varint() {
    u64 value = 0;
    for (u32 shift = 0; shift < 64 && at < end; shift += 7) {
      u8 byte = bytes[at++];
      value |= u64(byte & 127) << shift;
      if (byte < 128) break;
    }
    return value;
  }
  DKB_MEMBER u64 zigzag() {
    u64 v = varint();
    return v >> 1 ^ (0 - (v & 1));
  }
};

// Differences: the header, and the first value as a stretch of its own.
DKB_COLD void begin_differences(Runs& r, const u8* bytes, u32 at, u32 end) {
  Cursor c = {bytes, at, end};
  u64 block = c.varint(), miniblocks = c.varint(), values = c.varint(), first = c.zigzag();
  begin_runs(r, bytes, c.at, end, 0);
  r.sum = 0, r.differences = 0, r.miniblocks = 1, r.miniblock = 8;
  if (miniblocks == 0 || miniblocks > RUNS || values == 0 || values > MOST_VALUES) return;
  if (block == 0 || block > 1u << 20 || block % (8 * miniblocks) != 0) return;
  r.miniblocks = u32(miniblocks), r.miniblock = u32(block / miniblocks), r.differences = u32(values - 1);
  push_run(r, 1, c.at, 0, first);
}

// Run-length and bit-packed runs.
DKB_FN void next_hybrid_runs(Runs& r, Cursor& c) {
  const u32 width = r.width, value_bytes = (width + 7) / 8;
  while (r.count < RUNS && c.at < c.end) {
    u64 header = c.varint(), values = header >> 1;
    if (header & 1) {
      // Groups of eight; some writers cut off what the last one does not need.
      if (values > MOST_VALUES / 8) values = MOST_VALUES / 8;
      u64 size = values * width;
      values = size > c.left() ? u64(c.left()) * 8 / width : values * 8;
      push_run(r, values, c.at, width, 0);
      c.skip(size);
    } else {
      if (value_bytes > c.left()) return c.skip(value_bytes);
      u64 value = 0;
      for (u32 k = 0; k < value_bytes; ++k) value |= u64(c.bytes[c.at++]) << (8 * k);
      push_run(r, values, c.at, 0, value);
    }
  }
}

// Miniblocks of whole blocks.
DKB_FN void next_miniblocks(Runs& r, Cursor& c) {
  u32 differences = r.differences;
  while (differences > 0 && r.count + r.miniblocks <= RUNS) {
    u64 smallest = c.zigzag();
    const u8* widths = c.bytes + c.at;
    if (r.miniblocks > c.left()) differences = 0;
    c.skip(r.miniblocks);
    for (u32 k = 0; k < r.miniblocks && differences > 0; ++k) {
      u32 width = widths[k], values = least(differences, r.miniblock);
      // The last miniblock may be cut off behind its last value.
      if (width > 64 || (u64(values) * width + 7) / 8 > c.left()) {
        differences = 0;
        break;
      }
      push_run(r, values, c.at, width, smallest);
      c.skip(u64(r.miniblock) / 8 * width);
      differences -= values;
    }
  }
  r.differences = differences;
}

// Parses the next batch of headers; one lane. No stretch means that nothing is left.
DKB_COLD void next_runs(Runs& r) {
  Cursor c = {r.bytes, r.at, r.end};
  r.start[0] = r.start[r.count], r.count = 0;
  if (r.miniblocks == 0) next_hybrid_runs(r, c);
  else next_miniblocks(r, c);
  r.at = c.at;
}

// Makes value `index` part of the batch; false if there is none. The block takes part.
DKB_FN bool reach_run(Runs& r, u32 index) {
  bool behind = index >= r.start[r.count];
  Block::sync();
  if (behind) {
    if (Block::lane() == 0) next_runs(r);
    Block::sync();
  }
  return r.count != 0;
}

// The stretch of the batch that holds value `index`, which is in the batch.
DKB_FN u32 run_of(const Runs& r, u32 index) {
  u32 low = 0, high = r.count;
  while (high - low > 1) {
    u32 middle = (low + high) / 2;
    if (r.start[middle] <= index) low = middle;
    else high = middle;
  }
  return low;
}

// Unpacks values `first` to `first + n`; gives how many there are. The block takes part. T is at least as wide
// as the values; u16 for levels.
template <class T> struct Unpacked { typedef u32 Wide; };
template <> struct Unpacked<u64> { typedef u64 Wide; };
template <class T> DKB_FN u32 take_runs(Runs& r, u32 first, u32 n, T* out) {
  typedef typename Unpacked<T>::Wide Wide;
  u32 done = 0;
  while (done < n && reach_run(r, first + done)) {
    u32 index = first + done, count = least(n - done, r.start[r.count] - index), k = Block::lane();
    u32 run = k < count ? run_of(r, index + k) : 0;
    for (; k < count; k += Block::LANES) {
      while (r.start[run + 1] <= index + k) run += 1;
      u32 width = r.bits[run];
      Wide value = Wide(r.add[run]);
      if (width != 0) {
        u64 bit = u64(index + k - r.start[run]) * width;
        value += bits_at(r.bytes + r.from[run], bit, width, Wide());
      }
      out[done + k] = T(value);
    }
    done += count;
  }
  Block::sync();
  return done;
}

// Sums up `n` numbers in place, with `carry` from before; the block takes part.
DKB_FN void sum_up(u64* numbers, u32 n, u64* carry) {
  Piece piece = piece_of<Block>(n);
  u64 sum = 0, total;
  for (u32 k = piece.begin; k < piece.end; ++k) sum += numbers[k];
  u64 running = *carry + Block::before(sum, &total);
  for (u32 k = piece.begin; k < piece.end; ++k) numbers[k] = running += numbers[k];
  Block::sync();
  if (Block::lane() == 0) *carry += total;
  Block::sync();
}

// As `take_runs`, for differences.
DKB_FN u32 take_sums(Runs& r, u32 first, u32 n, u64* out) {
  u32 got = take_runs(r, first, n, out);
  sum_up(out, got, &r.sum);
  return got;
}

// ---------------------------------------------------------------- texts, one after another with their lengths
//
// The place of a text is known only from the lengths before it: one lane walks them, in shared memory.

// Bytes that are staged at a time.
#define STAGED 4096

// A text is its place in the page's bytes (low half) and its length (high half).
#define NO_TEXT (~0ull)
DKB_FN u64 text_word(u64 at, u64 length) { return at | length << 32; }

struct Chain {
  u32 at, found;
  u32 staged[STAGED / 4 + 2];
};

// Finds the next `n` texts of `bytes` up to `end`; gives how many there are. The block takes part.
DKB_FN u32 take_chain(Chain& c, const u8* bytes, u32 end, u32 n, u64* out) {
  u32 done = 0;
  while (done < n) {
    Block::sync();
    const u32 at = c.at, left = end - at, size = least(left, STAGED);
    if (left < 4) break;
    const u32 skew = u32(u64(bytes + at) & 3);
    const u32* words = aligned_word(bytes + at);
    for (u32 k = Block::lane(); 4 * k < skew + size; k += Block::LANES) c.staged[k] = words[k];
    Block::sync();
    if (Block::lane() == 0) {
      u32 p = 0, found = 0;
      while (done + found < n && p <= size - 4) {
        u32 shift = (skew + p) % 4 * 8, word = (skew + p) / 4;
        u32 length = shift == 0 ? c.staged[word] : funnel(c.staged[word], c.staged[word + 1], shift);
        if (length > left - p - 4) break;
        out[done + found++] = text_word(at + p + 4, length);
        p += 4 + length;
      }
      c.at = at + p, c.found = found;
    }
    Block::sync();
    if (c.found == 0) break;
    done += c.found;
  }
  Block::sync();
  return done;
}

// The code of a text in a sorted dictionary, or NO_CODE.
DKB_COLD u32 code_of(const u32* offsets, const u8* bytes, u32 entries, Str text) {
  u32 low = 0, high = entries;
  while (low < high) {
    u32 middle = low + (high - low) / 2;
    int order = compare(text_at(offsets, bytes, middle), text);
    if (order == 0) return middle;
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return NO_CODE;
}
DKB_FN u32 code_of(const ColumnTask& c, Str text) {
  return code_of(c.dict_offsets, c.dict_bytes, c.dict_entries, text);
}
