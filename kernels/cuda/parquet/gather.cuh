// Bytes of files into device memory, from host memory that the device reads in place.
//
// Threads read across the link themselves: a copy engine needs some microseconds for each piece, in which the link
// could move hundreds of kilobytes. A few blocks keep it busy.

// Words of 16 bytes that a block copies at a time, and those of a lane among them that are in flight together.
#define PART_WORDS 1024
#define FLIGHT 4

DKB_FN void copy_part(Words* to, const Words* from, u32 words) {
  for (u32 at = Block::lane(); at < words; at += FLIGHT * Block::LANES) {
    Words word[FLIGHT];
#pragma unroll
    for (u32 k = 0; k < FLIGHT; ++k) {
      if (at + k * Block::LANES < words) word[k] = load_once(from + at + k * Block::LANES);
    }
#pragma unroll
    for (u32 k = 0; k < FLIGHT; ++k) {
      if (at + k * Block::LANES < words) to[at + k * Block::LANES] = word[k];
    }
  }
}

// Copies pieces, a part a block. Whole cache lines in front are copied along, and behind them the 7 bytes that may be
// read as part of words.
extern "C" __global__ void __launch_bounds__(256) dkb_gather(u64 count, const CopyTask* pieces) {
  // The next part of this block, counted from the piece's first.
  u64 part = block_index();
  for (u64 at = 0; at < count; ++at) {
    const CopyTask piece = pieces[at];
    const u64 head = u64(piece.from) % 128, words = (head + piece.bytes + 7 + 15) / 16;
    const u64 parts = (words + PART_WORDS - 1) / PART_WORDS;
    const Words* from = (const Words*)(piece.from - head);
    Words* to = (Words*)(piece.to - head);
    for (; part < parts; part += block_count()) {
      const u64 first = part * PART_WORDS;
      copy_part(to + first, from + first, u32(words - first < PART_WORDS ? words - first : PART_WORDS));
    }
    part -= parts;
  }
}
