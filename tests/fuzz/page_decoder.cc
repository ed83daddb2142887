// Feeds mutated pages to the Parquet decoder's kernels, built for the host with sanitizers.
//
//   page_decoder SECONDS SEED CRASH_FILE CASE...
//
// A case is a page: lines `name number`, a line `--`, then the levels, the values and the dictionary page as they
// are in a file. Each case first runs as it is and must give what it expects. Whatever the bytes then are, the
// kernels must read and write within their buffers (the sanitizers see to that), fill every row, store only
// values that later kernels may index by, and decompress the same in batches and unit by unit. An input that
// fails is kept in CRASH_FILE, which is a case again.

#include <stdio.h>
#include <stdlib.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <vector>

// Chooses how `dkb_decompress` works; see kernels/cuda/parquet/decompress.cuh.
static bool in_batches = true;
#define DKB_BATCHES in_batches

#include "unit.cc"


typedef std::vector<u8> Bytes;

// Bytes that the decoder may touch behind a page, and not more.
static const size_t MARGIN = 8;

// Memory as the runtime gives it: aligned, and filled with something.
struct Memory {
  u8* at;
  Memory(size_t bytes, size_t margin, u8 fill) {
    at = (u8*)aligned_alloc(16, (bytes + margin + 15) / 16 * 16);
    memset(at, fill, bytes + margin);
    // Only what was asked for may be touched.
    tail = at + bytes + margin;
    tail_bytes = (bytes + margin + 15) / 16 * 16 - bytes - margin;
    __asan_poison_memory_region(tail, tail_bytes);
  }
  Memory(const Bytes& bytes) : Memory(bytes.size(), MARGIN, 0xA5) { std::copy(bytes.begin(), bytes.end(), at); }
  Memory(const Memory&) = delete;
  ~Memory() {
    __asan_unpoison_memory_region(tail, tail_bytes);
    free(at);
  }

 private:
  u8* tail;
  size_t tail_bytes;
};

struct Case {
  std::map<std::string, i64> number;
  Bytes levels, values, dict;

  i64 get(const char* name) const {
    auto found = number.find(name);
    return found == number.end() ? 0 : found->second;
  }
};

static Case current;
static const char* crash_file;

static void keep_current() {
  FILE* file = fopen(crash_file, "wb");
  if (file == nullptr) return;
  current.number["levels"] = i64(current.levels.size());
  current.number["values"] = i64(current.values.size());
  current.number["dict"] = i64(current.dict.size());
  current.number.erase("expect");
  for (const auto& entry : current.number) fprintf(file, "%s %lld\n", entry.first.c_str(), entry.second);
  fputs("--\n", file);
  for (const Bytes* part : {&current.levels, &current.values, &current.dict}) {
    fwrite(part->data(), 1, part->size(), file);
  }
  fclose(file);
}

[[noreturn]] static void fail(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  keep_current();
  exit(1);
}

static Case read_case(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) fail(std::string("cannot open ") + path);
  Case c;
  char line[200];
  while (fgets(line, sizeof line, file) != nullptr && strcmp(line, "--\n") != 0) {
    char name[100];
    i64 value;
    if (sscanf(line, "%99s %lld", name, &value) == 2) c.number[name] = value;
  }
  c.levels.resize(size_t(c.get("levels")));
  c.values.resize(size_t(c.get("values")));
  c.dict.resize(size_t(c.get("dict")));
  for (Bytes* part : {&c.levels, &c.values, &c.dict}) {
    if (fread(part->data(), 1, part->size(), file) != part->size()) fail(std::string(path) + " is cut off");
  }
  fclose(file);
  return c;
}

static u64 digest(u64 h, const void* bytes, size_t n) {
  for (size_t k = 0; k < n; ++k) h = (h ^ ((const u8*)bytes)[k]) * 0x100000001b3ull;
  return h;
}

// Decompresses in both ways, which must agree; false if the page is malformed.
static bool decompress(const Bytes& from, u32 plain_bytes, u32 codec, Bytes* to) {
  Memory input(from);
  u64 error[2] = {0, 0};
  Bytes plain[2];
  for (int way = 0; way < 2; ++way) {
    Memory output(plain_bytes, MARGIN, 0xEE);
    PageInput page = {input.at, output.at, u32(from.size()), plain_bytes, codec, 7};
    in_batches = way == 1;
    dkb_decompress(1, &page, &error[way]);
    plain[way].assign(output.at, output.at + plain_bytes);
    // Set to 0 before anything else is written.
    for (size_t k = 0; k < MARGIN; ++k) {
      if (output.at[plain_bytes + k] != 0) fail("a byte was written behind the page");
    }
  }
  if (error[0] != error[1]) fail("batches and units disagree on whether the page is malformed");
  if (error[0] != 0 && error[0] != (8 << 8 | BAD_COMPRESSED)) fail("wrong error word");
  if (error[0] == 0 && plain[0] != plain[1]) fail("batches and units disagree on the bytes");
  *to = plain[1];
  return error[0] == 0;
}

struct Result {
  u64 error, digest;
};

static i128 element(const u8* values, u64 row, u32 bytes, bool is_unsigned) {
  i128 v = 0;
  memcpy(&v, values + row * bytes, bytes);
  u32 shift = 128 - 8 * bytes;
  return is_unsigned || shift == 0 ? v : i128(u128(v) << shift) >> shift;
}

// Runs the kernels of one page and checks what must hold whatever its bytes are; `fill` is what memory holds before.
static Result decode(const Case& c, u8 fill) {
  static const char* const words[] = {"", "AIR", "RAIL", "SHIP", "TRUCK", "a", "b"};
  Bytes words_bytes;
  std::vector<u32> words_offsets = {0};
  for (const char* word : words) {
    words_bytes.insert(words_bytes.end(), word, word + strlen(word));
    words_offsets.push_back(u32(words_bytes.size()));
  }
  const u32 rows = u32(c.get("rows")), entries = u32(c.get("dict_entries")), kind = u32(c.get("kind"));
  // Rows that the page has; the column may have been given fewer, never more.
  const u64 page_rows = u64(c.get("skip")) < rows ? std::min<u64>(u64(c.get("take")), rows - u64(c.get("skip"))) : 0;
  const u64 out_rows = c.get("short_column") ? page_rows / 2 : page_rows;
  const u32 elem = u32(c.get("elem_bytes"));

  u64 error = 0;
  Bytes values_plain = c.values, dict_plain = c.dict;
  if (c.get("codec") != 0) {
    bool good = decompress(c.values, u32(c.get("plain_bytes")), u32(c.get("codec")), &values_plain);
    if (!c.dict.empty()) {
      good &= decompress(c.dict, u32(c.get("dict_plain_bytes")), u32(c.get("codec")), &dict_plain);
    }
    if (!good) error = BAD_COMPRESSED;
  }

  Memory levels(c.levels), values(values_plain), dict(dict_plain);
  Memory dict_offsets(4 * words_offsets.size(), 0, 0), dict_bytes(words_bytes);
  memcpy(dict_offsets.at, words_offsets.data(), 4 * words_offsets.size());
  Memory entry(size_t(entries) * 4, 0, fill), length(size_t(entries) * 4, 0, fill);
  Memory column_values(out_rows * elem, 0, fill), valid(out_rows, 0, fill);
  Memory offsets(4 * (out_rows + 1), 0, fill), sources(4 * out_rows, 0, fill);
  memset(offsets.at, 0, 4);

  PageTask page = {levels.at, values.at, u32(c.levels.size()), u32(values_plain.size()), rows, u32(c.get("skip")),
                   u32(c.get("take")), 0, 0, u32(c.get("encoding")), u32(c.get("level_mode"))};
  const bool has_dict = !c.dict.empty();
  ChunkTask chunk = {c.get("min"), c.get("max"), has_dict ? dict.at : nullptr, (u32*)entry.at, (u32*)length.at,
                     u32(dict_plain.size()), entries, 0, u32(c.get("bounds"))};
  ColumnTask column = {};
  column.times = c.get("times") ? c.get("times") : 1, column.over = c.get("over") ? c.get("over") : 1;
  column.values = column_values.at, column.valid = c.get("nullable") ? valid.at : nullptr;
  column.offsets = (u32*)offsets.at, column.sources = (u32*)sources.at;
  column.dict_offsets = (const u32*)dict_offsets.at, column.dict_bytes = dict_bytes.at;
  column.rows = out_rows, column.dict_entries = u32(words_offsets.size() - 1);
  column.kind = kind, column.physical = u32(c.get("physical")), column.type_length = u32(c.get("type_length"));
  column.elem_bytes = elem, column.flags = u32(c.get("flags"));

  dkb_block = 0, dkb_blocks = 1;
  dkb_dictionaries(1, &chunk, &column, &error);
  u64 sum = 0xcbf29ce484222325ull;
  if (kind == KIND_TEXT) {
    dkb_text_lengths(1, &page, &chunk, &column, &error);
    std::vector<u64> sums(out_rows / SCAN_TILE + 1);
    u64 total = 0;
    dkb_scan_tiles(out_rows, column.offsets, sums.data());
    dkb_scan_sums((out_rows + SCAN_TILE - 1) / SCAN_TILE, sums.data(), &total, 0, &error);
    dkb_scan_add(out_rows, column.offsets, sums.data());
    // As much text as a malformed page may claim is not allocated.
    column.capacity = total < 1 << 20 ? total : 1 << 20;
    Memory text(column.capacity, 0, fill);
    column.values = text.at;
    dkb_text_copy(1, &page, &chunk, &column, &error);
    sum = digest(sum, offsets.at, 4 * (out_rows + 1));
    if (error == 0 && out_rows == page_rows) sum = digest(sum, text.at, column.capacity);
  } else {
    dkb_decode(1, &page, &chunk, &column, &error);
    sum = digest(sum, column_values.at, out_rows * elem);
  }
  if (column.valid) sum = digest(sum, valid.at, out_rows);
  i128 low = column.times == 1 && column.over == 1 && chunk.bounds == BOUNDS_WITHIN ? chunk.min : 0, high = chunk.max;
  for (u64 row = 0; row < out_rows; ++row) {
    if (column.valid && column.valid[row] > 1) fail("validity is neither 0 nor 1");
    if (kind == KIND_TEXT || kind == KIND_FLOAT) continue;
    i128 v = element(column.values, row, elem, kind == KIND_CODES || column.flags & ELEM_UNSIGNED);
    if (kind == KIND_CODES && v >= i128(column.dict_entries)) fail("a code is past the dictionary");
    if (kind != KIND_INTEGER || chunk.bounds != BOUNDS_WITHIN || column.times != 1 || column.over != 1) continue;
    i128 clamped = std::min(std::max(low, elem_smallest(column)), elem_largest(column));
    bool is_null = column.valid ? column.valid[row] == 0 : error != 0;
    if (!(v >= low && v <= high) && v != clamped && !(is_null && v == 0)) fail("a value outside the bounds");
  }
  return Result{error, sum};
}

static void run(const Case& c) {
  current = c;
  alarm(20);
  Result first = decode(c, 0x00), second = decode(c, 0xFF);
  if ((first.error == 0) != (second.error == 0)) fail("an error depends on what memory held");
  if (first.digest != second.digest) fail("rows are left as memory was");
  auto expected = c.number.find("expect");
  if (expected == c.number.end()) return;
  if (first.error != 0) fail("a well-formed page gives error " + std::to_string(first.error & 0xff));
  if (u64(expected->second) != first.digest) fail("a well-formed page gives a wrong answer");
}

// ---------------------------------------------------------------- mutation

static u64 random_state;

static u64 draw(u64 below) {
  random_state += 0x9e3779b97f4a7c15ull;
  return hash64(random_state) % (below == 0 ? 1 : below);
}

static void mutate(Bytes& bytes, const Bytes& other) {
  static const u8 borders[] = {0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff, 0xf0, 0xfc};
  const size_t at = draw(bytes.size()), n = draw(16) + 1;
  if (bytes.empty() && draw(4) != 0) return;
  switch (draw(9)) {
    case 0: if (!bytes.empty()) bytes[at] ^= u8(1u << draw(8)); break;
    case 1: if (!bytes.empty()) bytes[at] = borders[draw(sizeof borders)]; break;
    case 2: if (!bytes.empty()) bytes[at] = u8(draw(256)); break;
    case 3: bytes.insert(bytes.begin() + i64(at), n, u8(draw(256))); break;
    case 4: bytes.erase(bytes.begin() + i64(at), bytes.begin() + i64(std::min(bytes.size(), at + n))); break;
    case 5: bytes.resize(at); break;
    case 6:
      for (size_t k = 0; k < n && at + k < bytes.size(); ++k) bytes[at + k] = u8(draw(256));
      break;
    case 7:
      if (!other.empty()) {
        size_t from = draw(other.size());
        size_t most = std::min(std::min(4 * n, bytes.size() - at), other.size() - from);
        std::copy_n(other.begin() + i64(from), most, bytes.begin() + i64(at));
      }
      break;
    case 8:
      // Early bytes are headers: they decide most.
      if (!bytes.empty()) bytes[draw(std::min<size_t>(bytes.size(), 12))] ^= u8(1u << draw(8));
      break;
  }
  if (bytes.size() > 1 << 16) bytes.resize(1 << 16);
}

static void mutate_numbers(Case& c) {
  static const char* const near[] = {"rows", "plain_bytes", "dict_plain_bytes", "dict_entries", "take"};
  const char* name = near[draw(5)];
  i64 value = draw(2) ? c.get(name) + i64(draw(7)) - 3 : i64(draw(3000));
  c.number[name] = value < 0 ? 0 : value;
  if (draw(3) == 0) c.number["skip"] = i64(draw(u64(c.get("rows")) + 2));
  if (draw(20) == 0) c.number["short_column"] = 1;
  if (draw(3) == 0) c.number["nullable"] = i64(draw(2));
  if (draw(4) == 0) c.number["level_mode"] = i64(draw(3));
  if (draw(8) == 0) {
    static const u8 encodings[] = {0, 2, 3, 5, 6, 7, 8, 9, 4, 77};
    c.number["encoding"] = encodings[draw(10)];
  }
  if (draw(3) == 0 && c.get("kind") == KIND_INTEGER) {
    c.number["elem_bytes"] = 1ll << draw(5);
    c.number["flags"] = i64(draw(c.get("elem_bytes") == 16 ? 2 : 4));
    c.number["bounds"] = i64(draw(3));
    c.number["min"] = i64(draw(2000)) - 1000;
    c.number["max"] = c.get("min") + i64(draw(2000));
    if (draw(3) == 0) c.number["times"] = i64(1 + draw(100));
    else if (draw(3) == 0) c.number["over"] = i64(1 + draw(100));
  }
  if (draw(6) == 0 && c.get("physical") == BYTE_ARRAY) {
    c.number["kind"] = draw(3) == 0 ? KIND_INTEGER : draw(2) ? KIND_CODES : KIND_TEXT;
    if (c.get("kind") == KIND_CODES) c.number["elem_bytes"] = 4, c.number["flags"] = ELEM_UNSIGNED;
    if (c.get("kind") == KIND_INTEGER) c.number["elem_bytes"] = 8, c.number["flags"] = 0;
    if (c.get("kind") == KIND_TEXT) c.number["elem_bytes"] = 0;
  }
  if (c.get("physical") == FIXED && draw(4) == 0) c.number["type_length"] = i64(draw(20));
}

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const double seconds = atof(argv[1]);
  random_state = strtoull(argv[2], nullptr, 0);
  crash_file = argv[3];
  __sanitizer_set_death_callback(keep_current);
  std::vector<Case> cases;
  for (int k = 4; k < argc; ++k) {
    cases.push_back(read_case(argv[k]));
    fprintf(stderr, "%s\n", argv[k]);
    run(cases.back());
  }
  // The same pages without a codec, so that mutations reach the values.
  for (size_t k = 0, n = cases.size(); k < n; ++k) {
    Case plain = cases[k];
    if (plain.get("codec") == 0) continue;
    decompress(cases[k].values, u32(plain.get("plain_bytes")), u32(plain.get("codec")), &plain.values);
    if (!plain.dict.empty()) {
      decompress(cases[k].dict, u32(plain.get("dict_plain_bytes")), u32(plain.get("codec")), &plain.dict);
    }
    plain.number["codec"] = 0;
    cases.push_back(plain);
  }
  const auto begin = std::chrono::steady_clock::now();
  u64 runs = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds) {
    Case c = cases[draw(cases.size())];
    const Case& other = cases[draw(cases.size())];
    c.number.erase("expect");
    for (u64 k = draw(4) + 1; k > 0; --k) {
      switch (draw(8)) {
        case 0: mutate(c.levels, other.levels); break;
        case 1: case 2: mutate(c.dict, other.dict); break;
        case 3: mutate_numbers(c); break;
        default: mutate(c.values, other.values);
      }
    }
    run(c);
    runs += 1;
  }
  printf("%llu inputs\n", runs);
}
