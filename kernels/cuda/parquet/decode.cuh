// Dictionary pages, and data pages to the elements of columns.

// ---------------------------------------------------------------- dictionaries

// Values of a tile.
#define TILE 1024

// Fills `entries` and `lengths` of byte array chunks; a block a chunk.
extern "C" __global__ void __launch_bounds__(256)
    dkb_dictionaries(u64 count, const ChunkTask* chunks, const ColumnTask* columns, u64* error) {
  __shared__ Chain chain;
  __shared__ u64 texts[TILE];
  for (u64 t = block_index(); t < count; t += block_count()) {
    const ChunkTask& chunk = chunks[t];
    const ColumnTask& column = columns[chunk.column];
    if (column.physical != BYTE_ARRAY || chunk.dict == nullptr || chunk.entries == nullptr) continue;
    const bool codes = column.kind == KIND_CODES;
    Block::sync();
    if (Block::lane() == 0) chain.at = 0;
    for (u32 first = 0, n; first < chunk.dict_entries; first += n) {
      n = least(TILE, chunk.dict_entries - first);
      u32 got = take_chain(chain, chunk.dict, chunk.dict_bytes, n, texts);
      for (u32 k = Block::lane(); k < n; k += Block::LANES) {
        u64 text = k < got ? texts[k] : 0;
        if (codes) {
          Str s = {chunk.dict + u32(text), u32(text >> 32)};
          chunk.entries[first + k] = k < got ? code_of(column, s) : NO_CODE;
        } else {
          chunk.entries[first + k] = u32(text);
          chunk.lengths[first + k] = u32(text >> 32);
        }
      }
      if (got < n && Block::lane() == 0) report(error, t, BAD_DICTIONARY);
      Block::sync();
    }
  }
}

// ---------------------------------------------------------------- pages to rows
//
// A block a page, a tile of rows at a time: levels say which rows have values, the values of these rows are
// located or unpacked, and each row takes its own.

// How a page's values lie.
enum Form {
  FORM_NONE,
  FORM_WORDS,   // 4 or 8 bytes each
  FORM_BYTES,   // big-endian bytes of one length
  FORM_BITS,    // bits
  FORM_SPLIT,   // 4 or 8 bytes each, byte by byte apart
  FORM_RUNS,    // runs of truth values
  FORM_INDEX,   // runs of dictionary indices
  FORM_SUMS,    // differences
  FORM_CHAIN,   // texts, each behind its length
  FORM_LENGTHS, // texts behind all lengths
  FORM_PREFIXED // texts behind all lengths of prefixes and of the rest
};

// In `rank`: the row is NULL.
#define NO_VALUE 0xffffu

// What stored integers must pass, and what is stored where one does not. In 64 bits where no value needs more:
// `low` and `span` are then those of the interval, modulo 2^64.
struct Check {
  i128 smallest, largest, fallback;
  u64 low, span;
  bool any, narrow;
};

// What the block shares about its page.
struct PageState {
  Runs levels, values;
  Chain chain;
  Check check;
  u64 texts_at;           // where the next text is, behind lengths
  u32 begin, available;   // the first byte of the values, and how many values fixed widths leave room for
  u32 width;              // bytes of a fixed-width value
  u32 form;
  bool has_levels, good_levels;
  u16 rank[TILE];
  u64 value[TILE];
};

// What only texts with prefixes need.
struct PrefixState {
  Runs runs;
  u64 length[TILE];
};

#define MOST_I128 i128(~u128(0) >> 1)

DKB_FN i128 elem_largest(const ColumnTask& c) {
  // Of 16 bytes there are only signed elements.
  u32 bits = 8 * c.elem_bytes - (c.flags & ELEM_UNSIGNED ? 0 : 1);
  return bits >= 127 ? MOST_I128 : (i128(1) << bits) - 1;
}
DKB_FN i128 elem_smallest(const ColumnTask& c) {
  return c.flags & ELEM_UNSIGNED ? i128(0) : -elem_largest(c) - 1;
}

DKB_COLD i128 quotient_of(i128 v, i128 by) { return v / by; }

// Product of a limit and a positive factor, kept within the type.
DKB_COLD i128 saturating_times(i128 v, i128 by) {
  if (by == 1) return v;
  const i128 most = quotient_of(MOST_I128, by);
  return v > most ? MOST_I128 : v < -most ? -MOST_I128 - 1 : v * by;
}

DKB_COLD void prepare_check(Check& check, const ChunkTask& chunk, const ColumnTask& c) {
  const i128 low_elem = elem_smallest(c), high_elem = elem_largest(c);
  i128 low = -MOST_I128 - 1, high = MOST_I128;
  check.fallback = 0;
  if (chunk.bounds == BOUNDS_WITHIN) {
    low = chunk.min, high = chunk.max;
    i128 changed = quotient_of(saturating_times(low, c.times), c.over);
    check.fallback = changed < low_elem ? low_elem : changed > high_elem ? high_elem : changed;
  }
  if (c.times != 1) {
    // Quotients truncate towards zero, which is into the interval on both sides.
    i128 from = quotient_of(low_elem, c.times), to = quotient_of(high_elem, c.times);
    low = low > from ? low : from, high = high < to ? high : to;
  } else {
    i128 from = saturating_times(low_elem, c.over), to = saturating_times(high_elem, c.over);
    low = low > from ? low : from, high = high < to ? high : to;
  }
  const bool words = c.physical == BOOLEAN || c.physical == INT32 || c.physical == INT64;
  check.narrow = words && c.times == 1 && c.over == 1;
  if (words) {
    const bool is_unsigned = c.flags & STORED_UNSIGNED;
    u32 bits = c.physical == INT64 ? 64 : 32;
    i128 from = is_unsigned ? 0 : -(i128(1) << (bits - 1)), to = from + (i128(1) << bits) - 1;
    low = low > from ? low : from, high = high < to ? high : to;
  }
  check.any = chunk.bounds != BOUNDS_EMPTY && low <= high;
  check.smallest = low, check.largest = high;
  check.low = u64(low), check.span = u64(u128(high) - u128(low));
}

DKB_COLD u32 form_of(const PageTask& page, const ChunkTask& chunk, const ColumnTask& c) {
  const bool texts = c.physical == BYTE_ARRAY, words = !texts && c.physical != FIXED && c.physical != BOOLEAN;
  switch (page.encoding) {
    case PLAIN:
      return texts ? FORM_CHAIN : words ? FORM_WORDS : c.physical == FIXED ? FORM_BYTES : FORM_BITS;
    case PLAIN_DICTIONARY:
    case RLE_DICTIONARY:
      if (chunk.dict == nullptr || (texts && (chunk.entries == nullptr))) return FORM_NONE;
      return c.physical == BOOLEAN ? FORM_NONE : FORM_INDEX;
    case RLE:
      return c.physical == BOOLEAN ? FORM_RUNS : FORM_NONE;
    case DELTA_BINARY_PACKED:
      return c.physical == INT32 || c.physical == INT64 ? FORM_SUMS : FORM_NONE;
    case DELTA_LENGTH_BYTE_ARRAY:
      return texts ? FORM_LENGTHS : FORM_NONE;
    case DELTA_BYTE_ARRAY:
      return texts && c.kind == KIND_TEXT && page.skip == 0 ? FORM_PREFIXED : FORM_NONE;
    case BYTE_STREAM_SPLIT:
      return words ? FORM_SPLIT : c.physical == FIXED ? FORM_BYTES : FORM_NONE;
  }
  return FORM_NONE;
}

// Walks all headers of differences; gives where they end. One lane.
DKB_COLD u32 end_of_differences(Runs& r, const u8* bytes, u32 at, u32 end) {
  begin_differences(r, bytes, at, end);
  do next_runs(r);
  while (r.count != 0);
  return r.at;
}

// Reads what stands in front of levels and values; one lane. `prefixes` is there if the form may need it.
DKB_COLD void open_page(PageState& s, Runs* prefixes, const PageTask& page, const ChunkTask& chunk,
                        const ColumnTask& c) {
  u32 begin = 0;
  s.has_levels = page.level_mode != LEVELS_NONE, s.good_levels = true;
  if (page.level_mode == LEVELS_V2) begin_runs(s.levels, page.levels, 0, page.level_bytes, 1);
  if (page.level_mode == LEVELS_V1) {
    u32 size = page.value_bytes >= 4 ? u32_at(page.values) : 0;
    s.good_levels = page.value_bytes >= 4 && size <= page.value_bytes - 4;
    begin = s.good_levels ? 4 + size : page.value_bytes;
    begin_runs(s.levels, page.values, s.good_levels ? 4 : begin, begin, 1);
  }
  const u32 end = page.value_bytes;
  s.form = form_of(page, chunk, c);
  s.width = c.physical == FIXED ? c.type_length : c.physical == INT32 || c.physical == FLOAT ? 4 : 8;
  s.begin = begin, s.available = s.width == 0 ? 0 : (end - begin) / s.width;
  s.chain.at = begin;
  s.texts_at = end;
  switch (s.form) {
    case FORM_BITS:
      s.available = end - begin < MOST_VALUES / 8 ? (end - begin) * 8 : MOST_VALUES;
      break;
    case FORM_RUNS: {
      // The length in front is that of the runs.
      u32 size = end - begin >= 4 ? u32_at(page.values + begin) : 0, first = end - begin >= 4 ? begin + 4 : end;
      begin_runs(s.values, page.values, first, first + least(size, end - first), 1);
      break;
    }
    case FORM_INDEX: {
      u32 width = begin < end ? page.values[begin] : 0, first = begin < end ? begin + 1 : end;
      begin_runs(s.values, page.values, width <= 32 ? first : end, end, least(width, 32));
      s.available = chunk.dict_entries;
      if (c.physical != BYTE_ARRAY) s.available = least(s.available, s.width == 0 ? 0 : chunk.dict_bytes / s.width);
      break;
    }
    case FORM_SUMS:
      begin_differences(s.values, page.values, begin, end);
      break;
    case FORM_LENGTHS:
      s.texts_at = end_of_differences(s.values, page.values, begin, end);
      begin_differences(s.values, page.values, begin, end);
      break;
    case FORM_PREFIXED: {
      if (prefixes == nullptr) {
        s.form = FORM_NONE;
        break;
      }
      u32 rest = end_of_differences(*prefixes, page.values, begin, end);
      s.texts_at = end_of_differences(s.values, page.values, rest, end);
      begin_differences(*prefixes, page.values, begin, end);
      begin_differences(s.values, page.values, rest, end);
      break;
    }
  }
}

// Which of the tile's `n` rows from `row` have values: `rank` is a row's value within the tile, or NO_VALUE. Gives
// the number of values; `dense` if every row has one, and then there are no ranks.
DKB_FN u32 rank_rows(PageState& s, u32 row, u32 n, bool* dense) {
  *dense = true;
  if (!s.has_levels) return n;
  // Most pages of nullable columns have no NULL: one run.
  if (reach_run(s.levels, row)) {
    const Runs& r = s.levels;
    u32 run = run_of(r, row);
    if (r.bits[run] == 0 && r.add[run] == 1 && r.start[run + 1] - row >= n) return n;
  }
  *dense = false;
  u32 got = take_runs(s.levels, row, n, s.rank);
  Piece piece = piece_of<Block>(n);
  u32 sum = 0, total;
  bool good = got == n;
  for (u32 k = piece.begin; k < piece.end; ++k) {
    if (k >= got) s.rank[k] = 0;
    if (s.rank[k] > 1) s.rank[k] = 0, good = false;
    sum += s.rank[k];
  }
  if (!good) s.good_levels = false;
  u32 rank = Block::before(sum, &total);
  for (u32 k = piece.begin; k < piece.end; ++k) s.rank[k] = s.rank[k] == 0 ? NO_VALUE : u16(rank++);
  Block::sync();
  return total;
}

// Makes `n` lengths, of which the first is that of the text at `texts_at`, into texts, or NO_TEXT where one does
// not lie within `end`.
DKB_FN void place_texts(PageState& s, u32 end, u32 n) {
  Piece piece = piece_of<Block>(n);
  u64 sum = 0, total;
  for (u32 k = piece.begin; k < piece.end; ++k) sum += s.value[k] <= end ? s.value[k] : 0;
  u64 at = s.texts_at + Block::before(sum, &total);
  for (u32 k = piece.begin; k < piece.end; ++k) {
    u64 length = s.value[k] <= end ? s.value[k] : 0;
    s.value[k] = s.value[k] <= end && at + length <= end ? text_word(at, length) : NO_TEXT;
    at += length;
  }
  Block::sync();
  if (Block::lane() == 0) s.texts_at += total;
  Block::sync();
}

// Unpacks or locates the page's values `first` to `first + n` into `value`; gives how many there are.
DKB_FN u32 take_values(PageState& s, const PageTask& page, u32 first, u32 n) {
  const u8* bytes = page.values + s.begin;
  const u32 available = first < s.available ? least(n, s.available - first) : 0;
  switch (s.form) {
    case FORM_WORDS:
    case FORM_BYTES:
      return available;
    case FORM_BITS:
      for (u32 k = Block::lane(); k < available; k += Block::LANES) {
        u32 bit = first + k;
        s.value[k] = bytes[bit / 8] >> (bit % 8) & 1;
      }
      Block::sync();
      return available;
    case FORM_SPLIT:
      for (u32 k = Block::lane(); k < available; k += Block::LANES) {
        u64 value = 0;
        for (u32 b = 0; b < s.width; ++b) value |= u64(bytes[u64(b) * s.available + first + k]) << (8 * b);
        s.value[k] = value;
      }
      Block::sync();
      return available;
    case FORM_RUNS:
      return take_runs(s.values, first, n, s.value);
    case FORM_INDEX:
      return take_runs(s.values, first, n, (u32*)s.value);
    case FORM_SUMS:
      return take_sums(s.values, first, n, s.value);
    case FORM_CHAIN:
      return take_chain(s.chain, page.values, page.value_bytes, n, s.value);
    case FORM_LENGTHS:
    case FORM_PREFIXED: {
      u32 got = take_sums(s.values, first, n, s.value);
      place_texts(s, page.value_bytes, got);
      return got;
    }
  }
  return 0;
}

// Where the values of a tile are, in registers.
struct Source {
  const u8* base;  // of fixed-width values
  u32 form, width, available;
  u32 first, got;  // the tile's first value within the page, and how many there are
};

// Each of the tile's rows that the page is to give: `store(at, has, k)` with the column's row, and the value's
// place in the tile if it `has` one.
template <class F>
DKB_FN void each_row(const PageState& s, const PageTask& page, const ColumnTask& c, u32 row, u32 n, bool dense,
                     u64* error, u64 task, F store) {
  for (u32 i = Block::lane(); i < n; i += Block::LANES) {
    if (row + i < page.skip) continue;
    const u64 at = page.out + (row + i - page.skip);
    if (at >= c.rows) continue;
    const u32 k = dense ? i : s.rank[i];
    const bool has = k != NO_VALUE;
    if (c.valid != nullptr) c.valid[at] = has;
    else if (!has) report(error, task, BAD_NULL);
    store(at, has, k);
  }
}

DKB_FN void store_element(const ColumnTask& c, u64 at, u64 low, u64 high) {
  switch (c.elem_bytes) {
    case 1: c.values[at] = u8(low); break;
    case 2: ((u16*)c.values)[at] = u16(low); break;
    case 4: ((u32*)c.values)[at] = u32(low); break;
    case 8: ((u64*)c.values)[at] = low; break;
    default: ((u64*)c.values)[2 * at] = low, ((u64*)c.values)[2 * at + 1] = high;
  }
}
DKB_FN void store_element(const ColumnTask& c, u64 at, i128 v) { store_element(c, at, u64(v), u64(u128(v) >> 64)); }

// The tile's value `k`, of at most 8 bytes, as it is stored; integers extended to 64 bits. Else what is wrong.
DKB_FN u32 fetch_word(const PageState& s, const Source& from, const ColumnTask& c, u32 k, u64* value) {
  if (k >= from.got) return BAD_VALUES;
  u32 index = from.first + k;
  if (from.form == FORM_INDEX) {
    index = ((const u32*)s.value)[k];
    if (index >= from.available) return BAD_INDEX;
  }
  if (from.form != FORM_INDEX && from.form != FORM_WORDS) *value = s.value[k];
  else if (from.width == 4) *value = u32_at(from.base + u64(index) * 4);
  else *value = u64_at(from.base + u64(index) * 8);
  if (c.physical == INT32) *value = c.flags & STORED_UNSIGNED ? u64(u32(*value)) : u64(i64(i32(*value)));
  return 0;
}

// The place and length of value `k`, a text: in the dictionary page or in the page. Else what is wrong.
DKB_FN u32 fetch_text(const PageState& s, const Source& from, const ChunkTask& chunk, u32 k, u64* text) {
  if (k >= from.got) return BAD_VALUES;
  if (from.form == FORM_INDEX) {
    u32 index = ((const u32*)s.value)[k];
    if (index >= from.available) return BAD_INDEX;
    *text = text_word(chunk.entries[index], chunk.lengths[index]);
    return 0;
  }
  *text = s.value[k];
  return *text == NO_TEXT ? BAD_VALUES : 0;
}

// A two's complement integer of `n` bytes that lie `stride` apart, most significant first. False if it does not
// fit.
DKB_COLD bool big_endian(const u8* p, u32 n, u64 stride, i128* value) {
  if (n == 0) return false;
  const u8 fill = p[0] & 0x80 ? 0xff : 0;
  u128 v = fill ? ~u128(0) : 0;
  bool fits = true;
  for (u32 k = 0; k < n; ++k) {
    u8 byte = p[k * stride];
    if (k + 16 < n) fits &= byte == fill;
    else v = v << 8 | byte;
  }
  *value = i128(v);
  return fits && (*value < 0) == (fill != 0);
}

// As `fetch_word`, for integers of any physical type.
DKB_FN u32 fetch_wide(const PageState& s, const Source& from, const PageTask& page, const ChunkTask& chunk,
                      const ColumnTask& c, u32 k, i128* value) {
  if (c.physical == BYTE_ARRAY) {
    u64 text;
    u32 wrong = fetch_text(s, from, chunk, k, &text);
    if (wrong) return wrong;
    const u8* bytes = from.form == FORM_INDEX ? chunk.dict : page.values;
    return big_endian(bytes + u32(text), u32(text >> 32), 1, value) ? 0 : TOO_WIDE;
  }
  if (c.physical == FIXED) {
    if (k >= from.got) return BAD_VALUES;
    u32 index = from.form == FORM_INDEX ? ((const u32*)s.value)[k] : from.first + k;
    if (index >= from.available) return BAD_INDEX;
    const bool split = page.encoding == BYTE_STREAM_SPLIT;
    const u8* bytes = from.base + (split ? index : u64(index) * from.width);
    return big_endian(bytes, from.width, split ? from.available : 1, value) ? 0 : TOO_WIDE;
  }
  u64 word = 0;
  u32 wrong = fetch_word(s, from, c, k, &word);
  *value = c.flags & STORED_UNSIGNED ? i128(word) : i128(i64(word));
  return wrong;
}

// Why an integer did not pass.
DKB_FN Reason refusal(const ChunkTask& chunk, i128 v) {
  if (chunk.bounds == BOUNDS_EMPTY) return OUTSIDE_FOOTER;
  return chunk.bounds == BOUNDS_WITHIN && (v < chunk.min || v > chunk.max) ? OUTSIDE_FOOTER : TOO_WIDE;
}

// What a tile's rows of one page and column are stored with.
struct Target {
  const PageState& s;
  const PageTask& page;
  const ChunkTask& chunk;
  const ColumnTask& c;
  u64* error;
  u64 task;
  u32 row, n;
  bool dense;

  template <class F> DKB_MEMBER void each(F store) const {
    each_row(s, page, c, row, n, dense, error, task, store);
  }
  DKB_MEMBER void refuse(u32 reason) const { report(error, task, Reason(reason)); }
};

// Integers of at most 64 bits that keep their unit.
DKB_FN void store_narrow(const Target& t, const Source& from) {
  const u64 low = t.s.check.low, span = t.s.check.span;
  const bool any = t.s.check.any, is_unsigned = t.c.flags & STORED_UNSIGNED;
  t.each([&](u64 at, bool has, u32 k) {
    u64 v = 0;
    if (has) {
      u32 wrong = fetch_word(t.s, from, t.c, k, &v);
      if (!wrong && !(any && v - low <= span)) {
        wrong = refusal(t.chunk, is_unsigned ? i128(v) : i128(i64(v)));
      }
      if (wrong) {
        t.refuse(wrong);
        return store_element(t.c, at, t.s.check.fallback);
      }
    }
    store_element(t.c, at, v, is_unsigned ? 0 : u64(i64(v) >> 63));
  });
}

// All other integers.
DKB_FN void store_wide(const Target& t, const Source& from) {
  t.each([&](u64 at, bool has, u32 k) {
    i128 v = 0;
    if (has) {
      u32 wrong = fetch_wide(t.s, from, t.page, t.chunk, t.c, k, &v);
      if (!wrong && !(t.s.check.any && v >= t.s.check.smallest && v <= t.s.check.largest)) {
        wrong = refusal(t.chunk, v);
      }
      if (!wrong) {
        if (t.c.times != 1) v *= t.c.times;
        if (t.c.over != 1) {
          i128 quotient = quotient_of(v, t.c.over);
          if (quotient * t.c.over != v) wrong = TOO_WIDE;
          v = quotient;
        }
      }
      if (wrong) {
        t.refuse(wrong);
        v = t.s.check.fallback;
      }
    }
    store_element(t.c, at, v);
  });
}

DKB_FN void store_floats(const Target& t, const Source& from) {
  t.each([&](u64 at, bool has, u32 k) {
    u64 v = 0;
    u32 wrong = has ? fetch_word(t.s, from, t.c, k, &v) : 0;
    if (wrong) t.refuse(wrong), v = 0;
    if (t.c.physical == FLOAT) {
      float narrow;
      u32 bits = u32(v);
      memcpy(&narrow, &bits, 4);
      f64 wide = narrow;
      memcpy(&v, &wide, 8);
    }
    ((u64*)t.c.values)[at] = v;
  });
}

DKB_FN void store_codes(const Target& t, const Source& from) {
  t.each([&](u64 at, bool has, u32 k) {
    u32 wrong = 0, code = 0;
    if (has && k >= from.got) {
      wrong = BAD_VALUES;
    } else if (has && from.form == FORM_INDEX) {
      u32 index = ((const u32*)t.s.value)[k];
      if (index < from.available) code = t.chunk.entries[index];
      else wrong = BAD_INDEX;
    } else if (has) {
      u64 text = t.s.value[k];
      if (text == NO_TEXT) wrong = BAD_VALUES;
      else code = code_of(t.c, Str{t.page.values + u32(text), u32(text >> 32)});
    }
    if (!wrong && code == NO_CODE) wrong = MISSING_TEXT;
    if (wrong) t.refuse(wrong), code = 0;
    store_element(t.c, at, code, 0);
  });
}

// Lengths and places of texts; `prefixes` are lengths to add, if any.
DKB_FN void store_texts(const Target& t, const Source& from, const u64* prefixes) {
  t.each([&](u64 at, bool has, u32 k) {
    u64 text = 0, prefix = 0;
    u32 wrong = has ? fetch_text(t.s, from, t.chunk, k, &text) : 0;
    if (has && !wrong && prefixes != nullptr) {
      prefix = prefixes[k];
      if (prefix > MOST_VALUES) wrong = BAD_VALUES;
    }
    if (wrong) t.refuse(wrong), text = 0, prefix = 0;
    t.c.offsets[at + 1] = u32(prefix) + u32(text >> 32);
    t.c.sources[at] = u32(text);
  });
}

// Fills a page's rows: their elements, or lengths and places of their texts. The block takes part.
template <bool TEXTS>
DKB_FN void decode_page(PageState& s, PrefixState* prefixes, const PageTask* pages, u64 task,
                        const ChunkTask* chunks, const ColumnTask* columns, u64* error) {
  const PageTask page = pages[task];
  const ChunkTask& chunk = chunks[page.chunk];
  const ColumnTask c = columns[chunk.column];
  const bool leader = Block::lane() == 0;
  Block::sync();
  if (leader) {
    open_page(s, TEXTS ? &prefixes->runs : nullptr, pages[task], chunk, columns[chunk.column]);
    if (c.kind == KIND_INTEGER) prepare_check(s.check, chunk, columns[chunk.column]);
    const bool words = c.physical == FLOAT || c.physical == DOUBLE;
    const bool fits = c.kind == KIND_TEXT ? TEXTS : !TEXTS && words == (c.kind == KIND_FLOAT);
    if (!fits || (c.kind >= KIND_CODES && c.physical != BYTE_ARRAY)) s.form = FORM_NONE;
    if (s.form == FORM_NONE) report(error, task, UNSUPPORTED);
  }
  Block::sync();
  Source from = {s.form == FORM_INDEX ? chunk.dict : page.values + s.begin, s.form, s.width, s.available, 0, 0};
  const u64 wanted = u64(page.skip) + page.take;
  const u32 stop = wanted < page.rows ? u32(wanted) : page.rows;
  for (u32 row = 0; row < stop; row += TILE) {
    const u32 n = least(TILE, stop - row);
    bool dense;
    const u32 values = rank_rows(s, row, n, &dense);
    from.got = take_values(s, page, from.first, values);
    if (TEXTS && s.form == FORM_PREFIXED) {
      from.got = least(from.got, take_sums(prefixes->runs, from.first, values, prefixes->length));
    }
    const Target target = {s, page, chunk, c, error, task, row, n, dense};
    if (leader && !s.good_levels) target.refuse(BAD_LEVELS);
    if (TEXTS) store_texts(target, from, s.form == FORM_PREFIXED ? prefixes->length : nullptr);
    else if (c.kind == KIND_CODES) store_codes(target, from);
    else if (c.kind == KIND_FLOAT) store_floats(target, from);
    else if (s.check.narrow) store_narrow(target, from);
    else store_wide(target, from);
    from.first += values;
    Block::sync();
  }
}

// Fills the elements of fixed-width columns and of codes; a block a page.
extern "C" __global__ void __launch_bounds__(256, 4)
    dkb_decode(u64 count, const PageTask* pages, const ChunkTask* chunks, const ColumnTask* columns, u64* error) {
  __shared__ PageState state;
  for (u64 t = block_index(); t < count; t += block_count()) {
    decode_page<false>(state, nullptr, pages, t, chunks, columns, error);
  }
}
