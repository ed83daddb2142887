// Text of data pages: lengths, offsets, and the bytes.

// Writes the length of each row's text behind its offset, and where it starts in its page; a block a page.
extern "C" __global__ void __launch_bounds__(256, 4)
    dkb_text_lengths(u64 count, const PageTask* pages, const ChunkTask* chunks, const ColumnTask* columns,
                     u64* error) {
  __shared__ PageState state;
  __shared__ PrefixState prefixes;
  for (u64 t = block_index(); t < count; t += block_count()) {
    decode_page<true>(state, &prefixes, pages, t, chunks, columns, error);
  }
}

// Rows of a tile of sums; as in parquet.rs.
#define SCAN_TILE 4096

// Sums up the lengths in `offsets[1..=rows]` within each tile; `sums` are those of whole tiles.
extern "C" __global__ void __launch_bounds__(256) dkb_scan_tiles(u64 rows, u32* offsets, u64* sums) {
  for (u64 tile = block_index(); tile * SCAN_TILE < rows; tile += block_count()) {
    u64 first = tile * SCAN_TILE, carry = 0, total;
    u32 n = rows - first < SCAN_TILE ? u32(rows - first) : SCAN_TILE;
    for (u32 k = 0; k < n; k += Block::LANES) {
      u32 i = k + Block::lane();
      u64 length = i < n ? offsets[1 + first + i] : 0;
      u64 end = carry + Block::before(length, &total) + length;
      if (i < n) offsets[1 + first + i] = u32(end);
      carry += total;
    }
    if (Block::lane() == 0) sums[tile] = carry;
  }
}

// Makes `sums` into what precedes each tile; `total` must fit an offset of column `column`. One block.
extern "C" __global__ void __launch_bounds__(256)
    dkb_scan_sums(u64 tiles, u64* sums, u64* total, u64 column, u64* error) {
  if (block_index() != 0) return;
  u64 carry = 0, sum;
  for (u64 k = 0; k < tiles; k += Block::LANES) {
    u64 i = k + Block::lane(), v = i < tiles ? sums[i] : 0;
    u64 before = carry + Block::before(v, &sum);
    if (i < tiles) sums[i] = before;
    carry += sum;
  }
  if (Block::lane() != 0) return;
  *total = carry;
  if (carry > 0xffffffffull) report(error, column, TOO_MUCH_TEXT);
}

// Adds to each offset what precedes its tile.
extern "C" __global__ void __launch_bounds__(256) dkb_scan_add(u64 rows, u32* offsets, const u64* sums) {
  for (u64 tile = block_index(); tile * SCAN_TILE < rows; tile += block_count()) {
    u64 first = tile * SCAN_TILE, end = first + SCAN_TILE < rows ? first + SCAN_TILE : rows;
    u32 before = u32(sums[tile]);
    for (u64 i = first + Block::lane(); i < end; i += Block::LANES) offsets[1 + i] += before;
  }
}

// Where the text of a row goes; false if that is not within the column, which only a total that was reported can
// cause.
DKB_FN bool room_for_text(const ColumnTask& c, u64 at, u32* begin, u32* length) {
  if (at >= c.rows) return false;
  u32 end = c.offsets[at + 1];
  *begin = c.offsets[at];
  *length = end - *begin;
  return end >= *begin && end <= c.capacity;
}

// Texts that are copied as they are: as many lanes a row as texts are long on average.
DKB_FN void copy_texts(const PageTask& page, const ColumnTask& c, u32 take, const u8* texts, u32 text_bytes) {
  if (take == 0 || page.out >= c.rows || take > c.rows - page.out) return;
  u32 lanes = 1;
  const u32 average = (c.offsets[page.out + take] - c.offsets[page.out]) / take;
  while (lanes < Warp::LANES && lanes * 2 < average) lanes *= 2;
  const u32 lane = Block::lane() % lanes;
  for (u32 row = Block::lane() / lanes; row < take; row += Block::LANES / lanes) {
    u32 begin, length, source = c.sources[page.out + row];
    if (!room_for_text(c, page.out + row, &begin, &length)) continue;
    if (source > text_bytes || length > text_bytes - source) continue;
    u8* to = c.values + begin;
    const u8* from = texts + source;
#pragma unroll 4
    for (u32 k = lane; k < length; k += lanes) to[k] = from[k];
  }
}

// Texts whose first bytes are those of the one before: one after another, by one warp. False if a prefix is longer
// than what it is of.
DKB_COLD bool copy_prefixed(PrefixState& s, const PageTask& page, const ColumnTask& c, u32 take) {
  u32 value = 0, held = 0, last = 0, last_length = 0;
  bool good = true;
  for (u32 row = 0; row < take; ++row) {
    u64 at = page.out + row;
    u32 begin, length;
    if (c.valid != nullptr && at < c.rows && c.valid[at] == 0) continue;
    if (value == held) {
      // All lanes of the block count the same rows, so they get here together.
      u32 first = held;
      held += take_sums(s.runs, first, TILE, s.length);
      if (held == first) return false;
    }
    u64 prefix = s.length[value++ % TILE];
    if (!room_for_text(c, at, &begin, &length)) return false;
    u32 source = c.sources[at];
    if (prefix > last_length || prefix > length) good = false, prefix = length < last_length ? length : last_length;
    u32 rest = length - u32(prefix);
    if (source > page.value_bytes || rest > page.value_bytes - source) good = false, rest = 0;
    if (Block::lane() < Warp::LANES) {
      for (u32 k = Warp::lane(); k < prefix; k += Warp::LANES) c.values[begin + k] = c.values[last + k];
      for (u32 k = Warp::lane(); k < rest; k += Warp::LANES) c.values[begin + prefix + k] = page.values[source + k];
      Warp::sync();
    }
    last = begin, last_length = length;
  }
  return good;
}

// Copies the texts to their offsets; a block a page.
extern "C" __global__ void __launch_bounds__(256, 4)
    dkb_text_copy(u64 count, const PageTask* pages, const ChunkTask* chunks, const ColumnTask* columns,
                  u64* error) {
  __shared__ PrefixState prefixes;
  for (u64 t = block_index(); t < count; t += block_count()) {
    const PageTask page = pages[t];
    const ChunkTask& chunk = chunks[page.chunk];
    const ColumnTask c = columns[chunk.column];
    const u32 take = page.skip < page.rows ? least(page.take, page.rows - page.skip) : 0;
    if (c.kind != KIND_TEXT || c.physical != BYTE_ARRAY) continue;
    if (page.encoding != DELTA_BYTE_ARRAY) {
      const bool indexed = page.encoding == PLAIN_DICTIONARY || page.encoding == RLE_DICTIONARY;
      copy_texts(page, c, take, indexed ? chunk.dict : page.values, indexed ? chunk.dict_bytes : page.value_bytes);
    } else if (page.skip == 0) {
      u32 begin = page.level_mode == LEVELS_V1 && page.value_bytes >= 4 ? u32_at(page.values) : 0;
      Block::sync();
      if (Block::lane() == 0) {
        u32 levels = page.level_mode == LEVELS_V1 ? 4 : 0;
        if (begin > page.value_bytes - least(levels, page.value_bytes)) begin = page.value_bytes, levels = 0;
        begin_differences(prefixes.runs, page.values, begin + levels, page.value_bytes);
      }
      Block::sync();
      bool good = copy_prefixed(prefixes, pages[t], columns[chunk.column], take);
      if (!good && Block::lane() == 0) report(error, t, BAD_VALUES);
    }
  }
}
