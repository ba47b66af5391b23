// Finds entry points of a JPEG, and cuts a part out of it with their help, without decoding anything.
//
// The entropy-coded data of a JPEG can only be read from its beginning: codes have any number of bits, and a block stores
// the difference of its mean (DC) from the mean of the block before. An entry point is a place where an MCU begins: the
// position of its first bit, and the means before it. With entry points, a decoder skips what it does not want.
//
// libjpeg cannot begin in the middle. So `cut_jpeg` makes a smaller JPEG for it: the bytes of the wanted MCUs as they
// are, and before each run of them an MCU of its own. This filler has the differences that lead to the right means, and
// as many bits as bring the wanted MCUs to their old position within a byte. Fillers form a column at the left, or a row
// at the top if whole rows are kept.
//
// Restart markers would do the same without entry points. But they change the image's bytes, and libjpeg-turbo has its
// fast Huffman decoder only for files without them (jdhuff.c, decode_mcu).
//
// Source: ITU-T T.81, B.1.1.5 (stuffed bytes), F.2.2 (Huffman decoding), K.2 (codes), https://www.w3.org/Graphics/JPEG/itu-t81.pdf

#include "entry_points.h"

#include <stdlib.h>
#include <string.h>

enum {
  VERSION = 1,      // the first byte of entry points
  SPACING_PX = 64,  // between entry points in a row
  MAX_COMPONENTS = 4,
  MAX_BLOCKS = 10,  // in an MCU (T.81, B.2.3)
  NUM_TABLES = 4,
  NUM_CATEGORIES = 12,  // of differences of means with 8 bits for a pixel (T.81, table F.1)
  MAX_DIFFERENCE = 2047,
  MAX_MEAN = 1 << 20,  // far beyond what an encoder writes
  BLOCK_VALUES = 64,
  LOOKUP_BITS = 10,
  MAX_CODE_BITS = 16,
  MAX_SYMBOL_BITS = 31,  // of a code and the number behind it
  RIGHT_BITS = 57,
  MAX_VARINT_BYTES = 10,
  FILLER_BYTES = 256,  // at most 10 blocks of 43 bits and 8 symbols of 26 bits, with a stuffed byte for each
  TABLE_BYTES = 21 + 256,  // of a segment DHT with one table
  // libjpeg-turbo's fast Huffman decoder stops when there are fewer bytes in memory (jdhuff.c, BUFSIZE).
  BYTES_BEHIND = 512 * MAX_BLOCKS,
  MAX_BLOCK_BYTES = 64 * 31 / 8 + 8,  // of the longest codes
};

enum { SOF0 = 0xC0, SOF1, DHT = 0xC4, SOI = 0xD8, EOI, SOS, DQT, DRI = 0xDD, APP0 = 0xE0, COM = 0xFE };

typedef struct {
  const uint8_t *counts;  // codes of 1 to 16 bits; NULL if the table is not defined
  const uint8_t *values;  // of the codes in their order
  int num_values;
} Table;

typedef struct {
  int width, height, num_components, num_blocks;
  int mcu_width, mcu_height;      // in pixels
  int num_columns, num_rows;      // of MCUs
  int component[MAX_BLOCKS];      // of each block in an MCU
  int dc[MAX_COMPONENTS], ac[MAX_COMPONENTS];  // numbers of tables
  Table tables[2][NUM_TABLES];    // DC and AC
  size_t size_position;  // of height and width in the data
  size_t scan_header, scan;  // positions of the segment SOS and of the data behind it
} Header;

static int two_bytes(const uint8_t *at) { return at[0] << 8 | at[1]; }

// --- header ---------------------------------------------------------------------------------------------------------

static int read_tables(Header *header, const uint8_t *at, const uint8_t *end) {
  while (at < end) {
    if (end - at < 1 + MAX_CODE_BITS || at[0] >> 4 > 1 || (at[0] & 15) >= NUM_TABLES) return 0;
    Table *table = &header->tables[at[0] >> 4][at[0] & 15];
    int num_values = 0, free_codes = 1;
    for (int i = 1; i <= MAX_CODE_BITS; i++) {
      num_values += at[i];
      free_codes = 2 * free_codes - at[i];
      if (free_codes < 1) return 0;  // the code of ones alone is not used either
    }
    if (num_values > 256 || end - at < 1 + MAX_CODE_BITS + num_values) return 0;
    *table = (Table){at + 1, at + 1 + MAX_CODE_BITS, num_values};
    at += 1 + MAX_CODE_BITS + num_values;
  }
  return 1;
}

static int read_frame(Header *header, const uint8_t *data, const uint8_t *at, const uint8_t *end, uint8_t *ids) {
  if (header->num_components || end - at < 6 || at[0] != 8) return 0;
  header->size_position = at + 1 - data;
  header->height = two_bytes(at + 1);
  header->width = two_bytes(at + 3);
  header->num_components = at[5];
  if (!header->height || !header->width || !at[5] || at[5] > MAX_COMPONENTS || end - at != 6 + 3 * at[5]) return 0;
  int h = at[7] >> 4, v = at[7] & 15;  // the first component is the finest in all usual files, and alone here
  if (h < 1 || h > 2 || v < 1 || v > 2 || (header->num_components == 1 && h * v != 1)) return 0;
  for (int c = 0; c < header->num_components; c++) {
    const uint8_t *component = at + 6 + 3 * c;
    int blocks = component[1] == at[7] ? h * v : 1;
    ids[c] = component[0];
    if ((component[1] != at[7] && component[1] != 0x11) || header->num_blocks + blocks > MAX_BLOCKS) return 0;
    while (blocks--) header->component[header->num_blocks++] = c;
  }
  header->mcu_width = 8 * h;
  header->mcu_height = 8 * v;
  header->num_columns = (header->width + header->mcu_width - 1) / header->mcu_width;
  header->num_rows = (header->height + header->mcu_height - 1) / header->mcu_height;
  return 1;
}

static int read_scan(Header *header, const uint8_t *at, const uint8_t *end, const uint8_t *ids) {
  int count = header->num_components;
  if (!count || end - at != 4 + 2 * count || at[0] != count) return 0;
  for (int c = 0; c < count; c++) {
    const uint8_t *component = at + 1 + 2 * c;
    header->dc[c] = component[1] >> 4;
    header->ac[c] = component[1] & 15;
    if (component[0] != ids[c] || header->dc[c] >= NUM_TABLES || header->ac[c] >= NUM_TABLES) return 0;
    if (!header->tables[0][header->dc[c]].counts || !header->tables[1][header->ac[c]].counts) return 0;
  }
  return end[-3] == 0 && end[-2] == BLOCK_VALUES - 1 && end[-1] == 0;
}

// Reads the segments of a JPEG up to its data. Returns 0 for a JPEG that has no entry points: one that is progressive,
// has several scans, arithmetic coding, restart markers, unusual sampling or no Huffman tables, or is broken.
static int read_header(const uint8_t *data, size_t size, Header *header) {
  uint8_t ids[MAX_COMPONENTS];
  memset(header, 0, sizeof *header);
  if (size < 4 || data[0] != 0xFF || data[1] != SOI) return 0;
  for (size_t position = 2; position + 4 <= size;) {
    const uint8_t *at = data + position;
    int code = at[1], length = two_bytes(at + 2), is_read = 1;
    if (at[0] != 0xFF || length < 2 || (size_t)length > size - position - 2) return 0;
    const uint8_t *start = at + 4, *end = at + 2 + length;
    if (code == DHT)
      is_read = read_tables(header, start, end);
    else if (code == SOF0 || code == SOF1)
      is_read = read_frame(header, data, start, end, ids);
    else if (code == DRI)
      is_read = length == 4 && two_bytes(start) == 0;
    else if (code != SOS)
      is_read = code == DQT || code == COM || (code >= APP0 && code < APP0 + 16);
    if (!is_read) return 0;
    if (code == SOS) {
      header->scan_header = position;
      header->scan = position + 2 + length;
      return read_scan(header, start, end, ids);
    }
    position += 2 + length;
  }
  return 0;
}

// --- finding entry points -------------------------------------------------------------------------------------------

// What a code stands for: how many bits it has together with the number behind it, and what it says.
typedef struct {
  uint8_t num_bits;  // 0 for no code
  uint8_t value;
} Meaning;

typedef struct {
  Meaning short_codes[1 << LOOKUP_BITS];
  const uint8_t *values[MAX_CODE_BITS + 1];  // of the codes of each length
  uint32_t starts[MAX_CODE_BITS + 1], ends[MAX_CODE_BITS + 1];  // of their codes, at the top of 16 bits
} Lookup;

static void fill_lookup(const Table *table, Lookup *lookup) {
  const int unused_bits = MAX_CODE_BITS - LOOKUP_BITS;
  uint32_t code = 0;  // at the top of 16 bits
  const uint8_t *value = table->values;
  memset(lookup, 0, sizeof *lookup);
  for (int length = 1; length <= MAX_CODE_BITS; length++) {
    uint32_t step = 1u << (MAX_CODE_BITS - length);
    lookup->values[length] = value;
    lookup->starts[length] = code;
    for (int i = 0; i < table->counts[length - 1]; i++, value++, code += step)
      for (uint32_t at = code >> unused_bits; length <= LOOKUP_BITS && at < (code + step) >> unused_bits; at++)
        lookup->short_codes[at] = (Meaning){length + (*value & 15), *value};
    lookup->ends[length] = code;
  }
}

static inline Meaning meaning_of(const Lookup *lookup, uint64_t bits) {
  Meaning meaning = lookup->short_codes[bits >> (64 - LOOKUP_BITS)];
  uint32_t code = (uint32_t)(bits >> (64 - MAX_CODE_BITS));
  for (int length = LOOKUP_BITS + 1; !meaning.num_bits && length <= MAX_CODE_BITS; length++)
    if (code < lookup->ends[length]) {
      uint8_t value = lookup->values[length][(code - lookup->starts[length]) >> (MAX_CODE_BITS - length)];
      meaning = (Meaning){length + (value & 15), value};
    }
  return meaning;
}

// Entropy-coded data without stuffed bytes, and what is in it.
typedef struct {
  uint8_t *bytes;  // MAX_BLOCK_BYTES more are zeros: a block can be read past the end before that is found
  size_t num_bytes;
  size_t *stuffed;  // positions in `bytes` behind which a byte was stuffed
  size_t num_stuffed;
  uint64_t position;  // of the next bit
} Scan;

static inline uint64_t next_bits(const Scan *scan) {  // the first RIGHT_BITS are right
  const uint8_t *at = scan->bytes + (scan->position >> 3);
  uint64_t high = (uint64_t)(at[0] << 8 | at[1]) << 16 | (uint64_t)(at[2] << 8 | at[3]);
  uint64_t low = (uint64_t)(at[4] << 8 | at[5]) << 16 | (uint64_t)(at[6] << 8 | at[7]);
  return (high << 32 | low) << (scan->position & 7);
}

// Returns 0 if the data do not end with the image: another marker follows, or none.
static int read_bytes(const uint8_t *data, size_t size, Scan *scan) {
  scan->bytes = malloc(size + MAX_BLOCK_BYTES);
  scan->stuffed = malloc((size / 2 + 1) * sizeof *scan->stuffed);
  if (!scan->bytes || !scan->stuffed) return 0;
  const uint8_t *at = data, *end = data + size, *marker;
  while ((marker = memchr(at, 0xFF, end - at)) && marker + 1 < end) {
    size_t count = marker - at + (marker[1] == 0);
    memcpy(scan->bytes + scan->num_bytes, at, count);
    scan->num_bytes += count;
    if (marker[1]) {
      memset(scan->bytes + scan->num_bytes, 0, MAX_BLOCK_BYTES);
      return marker[1] == EOI;
    }
    scan->stuffed[scan->num_stuffed++] = scan->num_bytes - 1;
    at = marker + 2;
  }
  return 0;
}

// Reads one block over. Returns 0 if a decoder would find it broken.
static inline int skip_block(Scan *scan, const Lookup *dc, const Lookup *ac, int *mean) {
  uint64_t bits = next_bits(scan);
  Meaning meaning = meaning_of(dc, bits);
  int category = meaning.value, length = meaning.num_bits - category;
  if (!meaning.num_bits || category >= NUM_CATEGORIES) return 0;
  if (category) {
    int number = (int)(bits << length >> (64 - category));
    *mean += number < 1 << (category - 1) ? number - (1 << category) + 1 : number;
    if (abs(*mean) > MAX_MEAN) return 0;
  }
  int num_bits = RIGHT_BITS;
  for (int k = 1; k < BLOCK_VALUES;) {
    bits <<= meaning.num_bits;
    num_bits -= meaning.num_bits;
    scan->position += meaning.num_bits;
    if (num_bits < MAX_SYMBOL_BITS) {
      bits = next_bits(scan);
      num_bits = RIGHT_BITS;
    }
    meaning = meaning_of(ac, bits);
    if (!meaning.num_bits) return 0;
    k += (meaning.value >> 4) + 1;
    if (!(meaning.value & 15)) {
      if (!meaning.value) break;
      if (meaning.value != 0xF0) return 0;
    }
    if (k > BLOCK_VALUES) return 0;
  }
  scan->position += meaning.num_bits;
  return scan->position <= 8 * (uint64_t)scan->num_bytes;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
  for (; value > 127; value >>= 7) *out++ = (uint8_t)value | 128;
  *out++ = (uint8_t)value;
  return out;
}

static uint64_t zigzag(int64_t value) { return (uint64_t)value << 1 ^ (uint64_t)(value >> 63); }

static uint8_t *put_points(const Header *header, Scan *scan, const Lookup (*lookups)[NUM_TABLES], size_t size,
                           uint8_t *out) {
  int means[MAX_COMPONENTS] = {0}, means_before[MAX_COMPONENTS] = {0};
  int spacing = SPACING_PX / header->mcu_width;
  uint64_t before = 8 * (uint64_t)header->scan;
  size_t num_stuffed = 0;
  *out++ = VERSION;
  out = put_varint(out, size);
  out = put_varint(out, spacing);
  for (int row = 0; row < header->num_rows; row++)
    for (int column = 0; column < header->num_columns; column++) {
      if (column % spacing == 0) {
        while (num_stuffed < scan->num_stuffed && scan->stuffed[num_stuffed] < scan->position >> 3) num_stuffed++;
        uint64_t position = 8 * (uint64_t)(header->scan + num_stuffed) + scan->position;
        out = put_varint(out, position - before);
        before = position;
        for (int c = 0; c < header->num_components; c++) {
          out = put_varint(out, zigzag(means[c] - means_before[c]));
          means_before[c] = means[c];
        }
      }
      for (int b = 0; b < header->num_blocks; b++) {
        int c = header->component[b];
        if (!skip_block(scan, &lookups[0][header->dc[c]], &lookups[1][header->ac[c]], &means[c])) return NULL;
      }
    }
  return (scan->position + 7) >> 3 == scan->num_bytes ? out : NULL;
}

// Returns the entry points of a JPEG, to be freed, and their size. They are empty for a JPEG that has none. Returns NULL
// if there is no memory.
//
// They consist of the version, the size of the JPEG, and how many MCUs an entry point is behind the one before it in its
// row of MCUs. Then for each entry point: how many bits it is behind the one before, stuffed bytes included, and for each
// component the difference of its mean. All are varints but the version; differences are zigzag-coded.
uint8_t *find_entry_points(const uint8_t *data, size_t size, size_t *found_size) {
  Header header;
  Scan scan = {0};
  uint8_t *found = NULL, *end = NULL;
  Lookup (*lookups)[NUM_TABLES] = NULL;
  *found_size = 0;
  if (!read_header(data, size, &header)) return malloc(1);
  int is_whole = read_bytes(data + header.scan, size - header.scan, &scan);
  // A block has at least two bits. Checked before anything is allocated that grows with the image.
  uint64_t num_blocks = (uint64_t)header.num_rows * header.num_columns * header.num_blocks;
  if (is_whole && num_blocks <= 4 * (uint64_t)scan.num_bytes) {
    size_t in_row = header.num_columns / (SPACING_PX / header.mcu_width) + 1;
    found = malloc(32 + header.num_rows * in_row * (1 + header.num_components) * MAX_VARINT_BYTES);
    lookups = malloc(2 * sizeof *lookups);
    if (found && lookups) {
      for (int kind = 0; kind < 2; kind++)
        for (int t = 0; t < NUM_TABLES; t++)
          if (header.tables[kind][t].counts) fill_lookup(&header.tables[kind][t], &lookups[kind][t]);
      end = put_points(&header, &scan, (const Lookup (*)[NUM_TABLES])lookups, size, found);
      if (end) *found_size = end - found;
    }
  } else if (scan.bytes && scan.stuffed) {
    found = malloc(1);
  }
  free(scan.bytes);
  free(scan.stuffed);
  free(lookups);
  return found;
}

// --- cutting --------------------------------------------------------------------------------------------------------

typedef struct {
  uint64_t position;  // of the first bit, in the data of the JPEG
  int means[MAX_COMPONENTS];
} EntryPoint;

typedef struct {
  const uint8_t *at, *end;
  EntryPoint next;
  int is_broken;
} Points;

static uint64_t take_varint(Points *points) {
  uint64_t value = 0;
  for (int shift = 0; points->at < points->end && shift < 64; shift += 7) {
    uint8_t byte = *points->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  points->is_broken = 1;
  return 0;
}

static void take_point(const Header *header, size_t size, Points *points) {
  uint64_t bits = take_varint(points);
  points->is_broken |= bits >= 8 * (uint64_t)size - points->next.position;
  if (!points->is_broken) points->next.position += bits;
  for (int c = 0; c < header->num_components; c++) {
    uint64_t difference = take_varint(points);
    points->is_broken |= difference > 2 * (uint64_t)MAX_DIFFERENCE * 32;
    if (points->is_broken) return;
    points->next.means[c] += (int)(difference >> 1) ^ -(int)(difference & 1);
    points->is_broken |= abs(points->next.means[c]) > MAX_MEAN;
  }
}

typedef struct {
  uint16_t bits;
  uint8_t length;  // 0 for no code
  uint8_t number_bits;  // of the number behind it, where it is padding
} Code;

typedef struct {
  Code dc[MAX_COMPONENTS][NUM_CATEGORIES], end_of_block[MAX_COMPONENTS];
  // By how many bits modulo 8 are wanted: symbols of the first component that have so many together.
  Code padding[8][8];
  int num_padding[8];             // -1 where no symbols have so many bits
} Fillers;

static Code code_of(const Table *table, int value) {
  uint32_t code = 0;
  const uint8_t *at = table->values;
  for (int length = 1; length <= MAX_CODE_BITS; length++, code <<= 1)
    for (int i = 0; i < table->counts[length - 1]; i++, code++)
      if (*at++ == value) return (Code){code, length, 0};
  return (Code){0};
}

// Gives a code to each category of means; the table, if it has to be completed, is written as a segment. Tables made for
// one image often lack some categories, and the code space always has room for more codes of 16 bits.
// Returns the end of what is written, NULL if it is impossible.
static uint8_t *complete_table(const Table *table, int number, Code *codes, uint8_t *out) {
  uint32_t next_code = 0;
  uint8_t missing[NUM_CATEGORIES];
  int num_missing = 0;
  for (int i = 0; i < MAX_CODE_BITS; i++) next_code = 2 * next_code + table->counts[i];
  for (int category = 0; category < NUM_CATEGORIES; category++) {
    codes[category] = code_of(table, category);
    if (codes[category].length) continue;
    if (next_code >= 0xFFFF) return NULL;
    codes[category] = (Code){next_code++, MAX_CODE_BITS, 0};
    missing[num_missing++] = category;
  }
  int num_values = table->num_values + num_missing;
  if (!num_missing) return out;
  if (num_values > 255) return NULL;
  int length = 3 + MAX_CODE_BITS + num_values;
  uint8_t head[] = {0xFF, DHT, length >> 8, length, number};
  memcpy(out, head, sizeof head);
  memcpy(out + sizeof head, table->counts, MAX_CODE_BITS);
  out[sizeof head + MAX_CODE_BITS - 1] += num_missing;
  out += sizeof head + MAX_CODE_BITS;
  memcpy(out, table->values, table->num_values);
  memcpy(out + table->num_values, missing, num_missing);
  return out + num_values;
}

// Finds symbols for each number of bits modulo 8: the shortest for which there is one, then sums.
static void find_padding(const Table *table, Fillers *fillers) {
  Code best[8] = {0};
  int bits_of[8], totals[8];
  uint32_t code = 0;
  const uint8_t *value = table->values;
  for (int i = 0; i < 8; i++) bits_of[i] = totals[i] = 1 << 10;
  for (int length = 1; length <= MAX_CODE_BITS; length++, code <<= 1)
    for (int i = 0; i < table->counts[length - 1]; i++, code++, value++) {
      int number_bits = *value & 15, bits = length + number_bits;
      // Each skips 6 values at most, so that eight fit into a block.
      if (!number_bits || number_bits > 10 || *value >> 4 > 5 || bits >= bits_of[bits & 7]) continue;
      best[bits & 7] = (Code){code, length, number_bits};
      bits_of[bits & 7] = bits;
    }
  for (int i = 0; i < 8; i++) fillers->num_padding[i] = -1;
  fillers->num_padding[0] = totals[0] = 0;
  for (int pass = 0; pass < 8; pass++)
    for (int from = 0; from < 8; from++) {
      int count = fillers->num_padding[from];
      if (count < 0 || count == 8) continue;
      for (int by = 0; by < 8; by++) {
        int to = (from + by) & 7, total = totals[from] + bits_of[by];
        if (total >= totals[to] || !best[by].length) continue;
        memcpy(fillers->padding[to], fillers->padding[from], sizeof *fillers->padding);
        fillers->padding[to][count] = best[by];
        fillers->num_padding[to] = count + 1;
        totals[to] = total;
      }
    }
}

typedef struct {
  uint8_t *at;
  uint64_t bits;  // the last `num_bits` of them are not written yet: always less than a byte
  int num_bits;
} Output;

static void put_byte(Output *out, uint8_t byte) {
  *out->at++ = byte;
  if (byte == 0xFF) *out->at++ = 0;
}

static void put_bits(Output *out, uint32_t bits, int length) {
  out->bits = out->bits << length | bits;
  out->num_bits += length;
  while (out->num_bits >= 8) {
    out->num_bits -= 8;
    put_byte(out, (uint8_t)(out->bits >> out->num_bits));
  }
}

static int category_of(int difference) {
  int category = 0;
  for (int rest = abs(difference); rest; rest >>= 1) category++;
  return category;
}

// Writes an MCU after which means and position are those of `target`; with no target, one that leaves the means alone.
static int put_filler(const Header *header, const Fillers *fillers, int *means, const EntryPoint *target, Output *out) {
  int differences[MAX_BLOCKS] = {0}, num_bits = out->num_bits;
  for (int b = 0; b < header->num_blocks; b++) {
    int c = header->component[b];
    if (target) differences[b] = target->means[c] - means[c];
    if (abs(differences[b]) > MAX_DIFFERENCE) return 0;
    if (target) means[c] = target->means[c];
    int category = category_of(differences[b]);
    num_bits += fillers->dc[c][category].length + category + fillers->end_of_block[c].length;
  }
  int wanted = target ? ((int)(target->position & 7) - num_bits) & 7 : 0;
  if (fillers->num_padding[wanted] < 0) return 0;
  for (int b = 0; b < header->num_blocks; b++) {
    int c = header->component[b], category = category_of(differences[b]);
    Code dc = fillers->dc[c][category], end = fillers->end_of_block[c];
    put_bits(out, dc.bits, dc.length);
    int number = differences[b] < 0 ? differences[b] - 1 : differences[b];
    put_bits(out, (uint32_t)number & ((1u << category) - 1), category);
    for (int i = 0; b == 0 && i < fillers->num_padding[wanted]; i++) {
      Code code = fillers->padding[wanted][i];
      put_bits(out, code.bits << code.number_bits | 1, code.length + code.number_bits);
    }
    put_bits(out, end.bits, end.length);
  }
  return 1;
}

// Copies the bits from one position to another one; `out` is at the same position within a byte as `from`.
static int copy_bits(const uint8_t *data, uint64_t from, uint64_t to, Output *out) {
  size_t first = from >> 3, last = to >> 3;
  int skipped = from & 7, wanted = to & 7;
  if (to < from) return 0;
  if (first == last)
    return put_bits(out, (data[first] >> (8 - wanted)) & ((1u << (wanted - skipped)) - 1), wanted - skipped), 1;
  put_byte(out, (uint8_t)(out->bits << (8 - skipped)) | (data[first] & (0xFF >> skipped)));
  size_t next = first + 1 + (data[first] == 0xFF);  // a stuffed byte is written by put_byte, where there has to be one
  if (next > last) return 0;
  memcpy(out->at, data + next, last - next);
  out->at += last - next;
  out->bits = data[last] >> (8 - wanted);
  out->num_bits = wanted;
  return 1;
}

typedef struct {
  int first_row, end_row, first_column, end_column;  // of MCUs
  int has_whole_rows;
} Range;

static Range range_of(const Header *header, Part part, int spacing) {
  // Where color is stored with fewer rows, libjpeg enlarges it smoothly, with the rows above and below.
  int margin = header->mcu_height > 8;
  Range range = {
      .first_row = part.top / header->mcu_height - margin,
      .end_row = (part.top + part.height - 1) / header->mcu_height + 1 + margin,
      .first_column = part.left / header->mcu_width / spacing * spacing,
      .end_column = ((part.left + part.width - 1) / header->mcu_width / spacing + 1) * spacing,
  };
  if (range.first_row < 0) range.first_row = 0;
  if (range.end_row > header->num_rows) range.end_row = header->num_rows;
  if (range.end_column > header->num_columns) range.end_column = header->num_columns;
  range.has_whole_rows = range.first_column == 0 && range.end_column == header->num_columns;
  return range;
}

static uint8_t *put_header(const Header *header, const uint8_t *data, Range range, Fillers *fillers, uint8_t *out) {
  int height = (range.end_row - range.first_row + range.has_whole_rows) * header->mcu_height;
  int width = (range.end_column - range.first_column + !range.has_whole_rows) * header->mcu_width;
  if (range.end_row == header->num_rows) height -= header->num_rows * header->mcu_height - header->height;
  if (range.end_column == header->num_columns) width -= header->num_columns * header->mcu_width - header->width;
  uint8_t size[] = {height >> 8, height, width >> 8, width};
  memcpy(out, data, header->scan_header);
  memcpy(out + header->size_position, size, sizeof size);
  out += header->scan_header;
  for (int c = 0; c < header->num_components; c++) {
    fillers->end_of_block[c] = code_of(&header->tables[1][header->ac[c]], 0);
    out = complete_table(&header->tables[0][header->dc[c]], header->dc[c], fillers->dc[c], out);
    if (!out || !fillers->end_of_block[c].length) return NULL;
  }
  find_padding(&header->tables[1][header->ac[0]], fillers);
  memcpy(out, data + header->scan_header, header->scan - header->scan_header);
  return out + header->scan - header->scan_header;
}

// Writes the wanted MCUs of all rows, each run of them behind fillers.
static int put_rows(const Header *header, const uint8_t *data, size_t size, Points *points, int spacing, Range range,
                    const Fillers *fillers, Output *out) {
  int means[MAX_COMPONENTS] = {0};
  EntryPoint from = {0};
  int in_row = (header->num_columns + spacing - 1) / spacing, is_open = 0;
  for (int row = 0; row < range.end_row + 1; row++)
    for (int i = 0; i < in_row; i++) {
      if (row == header->num_rows) {  // there is no entry point: all that is left belongs to the last run
        if (is_open) {
          if (!copy_bits(data, from.position, 8 * (uint64_t)(size - 1), out)) return 0;
          *out->at++ = data[size - 1];
          out->num_bits = 0;
        }
        return 1;
      }
      take_point(header, size, points);
      if (points->is_broken) return 0;
      int column = i * spacing;
      int is_end = range.has_whole_rows ? row == range.end_row && !i : column == range.end_column % header->num_columns;
      if (is_open && is_end) {
        if (!copy_bits(data, from.position, points->next.position, out)) return 0;
        memcpy(means, points->next.means, sizeof means);
        is_open = 0;
      }
      if (row == range.end_row) return !is_open;
      int is_start = range.has_whole_rows ? row == range.first_row && !i : column == range.first_column;
      if (row < range.first_row || !is_start) continue;
      from = points->next;
      for (int f = range.has_whole_rows ? header->num_columns : 1; f > 0; f--)
        if (!put_filler(header, fillers, means, f == 1 ? &from : NULL, out)) return 0;
      is_open = 1;
    }
  return 0;
}

// Makes a smaller JPEG from which libjpeg decodes the same pixels of `part`. Returns 0 if all of the image is needed, or
// if entry points and image do not fit each other. Entry points that are wrong but plausible give a JPEG that libjpeg
// warns of, or other pixels; nothing outside of the given memory is read or written.
int cut_jpeg(const uint8_t *data, size_t size, const uint8_t *points_data, size_t points_size, Part part,
             CutJpeg *cut) {
  Header header;
  Fillers fillers;
  if (!points_size || points_data[0] != VERSION || !read_header(data, size, &header)) return 0;
  if (!is_inside(part, 1, header.height, header.width)) return 0;
  Points points = {points_data + 1, points_data + points_size, {8 * (uint64_t)header.scan, {0}}, 0};
  uint64_t known_size = take_varint(&points), spacing = take_varint(&points);
  if (points.is_broken || known_size != size || spacing < 1 || spacing > 1 << 16 || header.scan >= size) return 0;
  Range range = range_of(&header, part, (int)spacing);
  if (range.has_whole_rows && range.first_row == 0) return 0;  // the rows below are not read anyway
  size_t capacity = size + MAX_COMPONENTS * TABLE_BYTES + (size_t)header.num_rows * FILLER_BYTES + BYTES_BEHIND;
  if (range.has_whole_rows) capacity += (size_t)header.num_columns * FILLER_BYTES;
  if (capacity > cut->capacity) {
    uint8_t *grown = realloc(cut->data, capacity);
    if (!grown) return 0;
    cut->data = grown;
    cut->capacity = capacity;
  }
  uint8_t *start = put_header(&header, data, range, &fillers, cut->data);
  if (!start) return 0;
  Output out = {start, 0, 0};
  if (!put_rows(&header, data, size, &points, (int)spacing, range, &fillers, &out)) return 0;
  if (out.num_bits) put_bits(&out, (1u << (8 - out.num_bits)) - 1, 8 - out.num_bits);
  *out.at++ = 0xFF;
  *out.at++ = EOI;
  memset(out.at, 0, BYTES_BEHIND - 2);
  cut->size = out.at + BYTES_BEHIND - 2 - cut->data;
  part.top -= (range.first_row - range.has_whole_rows) * header.mcu_height;
  part.left -= (range.first_column - !range.has_whole_rows) * header.mcu_width;
  cut->part = part;
  cut->source_height = header.height;
  cut->source_width = header.width;
  return 1;
}
