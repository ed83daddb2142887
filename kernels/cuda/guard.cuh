// What a judge asks of memory, beside dkb.cuh: whether it has changed, rows in another order, and other keys.

// All bits of the result depend on all of `word`.
DKB_FN u64 guard_mixed(u64 word) {
  word = (word ^ word >> 33) * 0xFF51AFD7ED558CCDull;
  word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53ull;
  return word ^ word >> 33;
}

// What a value at an address adds to a sum.
DKB_FN u64 guard_term(u64 value, const void* at, u64 seed) {
  return guard_mixed(value ^ (u64(at) ^ seed) * 0x9E3779B97F4A7C15ull);
}

// Adds to `sum` what depends on every byte and its address. Who does not know the seed cannot change bytes so that the
// sum stays.
extern "C" __global__ void dkb_sum(u64 bytes, const u8* from, u64 seed, u64* sum) {
  u64 head = (8 - u64(from) % 8) % 8;
  if (head > bytes) head = bytes;
  const u64 words = (bytes - head) / 8, edges = bytes - words * 8;
  const u64* word = (const u64*)(from + head);
  u64 total = 0;
#pragma unroll 4
  DKB_ROWS(i, words) total += guard_term(word[i], word + i, seed);
  DKB_ROWS(i, edges) {
    const u8* byte = from + (i < head ? i : i + words * 8);
    total += guard_term(*byte, byte, seed);
  }
  block_add(sum, total);
}

// Where row `at` of `rows` goes in an order that the key gives: a Feistel network over the next power of four,
// repeated until it ends below `rows`.
DKB_FN u64 guard_shuffled(u64 at, u64 rows, u64 key) {
  u32 half = 1;
  while (half < 32 && u64(1) << 2 * half < rows) ++half;
  const u64 mask = (u64(1) << half) - 1;
  do {
    for (u64 round = 0; round < 4; ++round) {
      const u64 low = at & mask;
      at = low << half | (((at >> half) ^ guard_mixed(low + (key ^ round << 32))) & mask);
    }
  } while (at >= rows);
  return at;
}

template <class T> DKB_FN void guard_swap_rows(u64 rows, T* values, u64 key) {
  DKB_ROWS(i, rows / 2) {
    const u64 a = guard_shuffled(i, rows, key), b = guard_shuffled(rows - 1 - i, rows, key);
    const T value = values[a];
    values[a] = values[b];
    values[b] = value;
  }
}

// Swaps the values of rows in pairs that the key gives; once more puts them back.
extern "C" __global__ void dkb_swap_rows(u64 rows, u64 width, u8* values, u64 key) {
  switch (width) {
    case 1: return guard_swap_rows(rows, values, key);
    case 2: return guard_swap_rows(rows, (u16*)values, key);
    case 4: return guard_swap_rows(rows, (u32*)values, key);
    case 8: return guard_swap_rows(rows, (u64*)values, key);
    case 16: return guard_swap_rows(rows, (u128*)values, key);
  }
}

// Values count from `least` without a sign, so that one comparison tells what lies between, whether T has a sign or not.
template <class T> DKB_FN void guard_reflect(u64 rows, T* values, const u8* valid, i64 least, i64 most) {
  const T width = T(T(most) - T(least));
  DKB_ROWS(i, rows) {
    const T above = T(values[i] - T(least));
    if (above <= width && (!valid || valid[i])) values[i] = T(T(most) - above);
  }
}

// Reflects the values from `least` to `most` within these bounds, and leaves others and NULLs alone; once more puts them
// back. `valid` is null where there are no NULLs.
extern "C" __global__ void dkb_reflect(u64 rows, u64 width, u8* values, const u8* valid, i64 least, i64 most) {
  switch (width) {
    case 1: return guard_reflect(rows, values, valid, least, most);
    case 2: return guard_reflect(rows, (u16*)values, valid, least, most);
    case 4: return guard_reflect(rows, (u32*)values, valid, least, most);
    case 8: return guard_reflect(rows, (u64*)values, valid, least, most);
    case 16: return guard_reflect(rows, (u128*)values, valid, least, most);
  }
}
