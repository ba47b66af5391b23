// Finds the markers of a JPEG, and checks that it is whole, as jpeg_structure.py does.
//
// Only the usual case is handled: whatever is odd about a file is left to the Python code, which words the errors.

#include "jpeg_structure.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <immintrin.h>
#define HAS_X86_CODE
#endif

// --- markers --------------------------------------------------------------------------------------------------------

// Returns the next marker: skips restart markers, fill bytes, and stuffed 0xFF in entropy-coded data.
static const uint8_t *next_marker_plain(const uint8_t *at, const uint8_t *end) {
  while (at < end && (at = memchr(at, 0xFF, end - at)) && at + 1 < end) {
    uint8_t code = at[1];
    if (code == 0xFF)
      at++;
    else if (code == 0 || (code >= 0xD0 && code <= 0xD7))
      at += 2;
    else
      return at;
  }
  return NULL;
}

#ifdef HAS_X86_CODE
#define AVX2 __attribute__((target("avx2")))

// The same, 32 bytes at a time: a JPEG has a 0xFF in every 260 bytes, and each call of memchr costs 20 ns.
AVX2 static const uint8_t *next_marker_avx2(const uint8_t *at, const uint8_t *end) {
  const __m256i all_ones = _mm256_set1_epi8(-1), zero = _mm256_setzero_si256();
  const __m256i restart = _mm256_set1_epi8((char)0xD0), upper_five = _mm256_set1_epi8((char)0xF8);
  for (; end - at > 32; at += 32) {
    __m256i here = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)at), all_ones);
    if (_mm256_testz_si256(here, here)) continue;
    __m256i next = _mm256_loadu_si256((const __m256i *)(at + 1));
    __m256i is_none = _mm256_or_si256(_mm256_cmpeq_epi8(next, zero), _mm256_cmpeq_epi8(next, all_ones));
    is_none = _mm256_or_si256(is_none, _mm256_cmpeq_epi8(_mm256_and_si256(next, upper_five), restart));
    uint32_t found = _mm256_movemask_epi8(_mm256_andnot_si256(is_none, here));
    if (found) return at + __builtin_ctz(found);
  }
  return next_marker_plain(at, end);
}
#endif

const uint8_t *(*next_marker)(const uint8_t *, const uint8_t *) = next_marker_plain;

void choose_next_marker(void) {
#ifdef HAS_X86_CODE
  if (__builtin_cpu_supports("avx2") && !getenv("IMAGEBEAM_PLAIN_C")) next_marker = next_marker_avx2;  // for tests
#endif
}

// --- structure of a JPEG --------------------------------------------------------------------------------------------

enum { SOF0 = 0xC0, SOF1, SOF2, DHT = 0xC4, SOF9 = 0xC9, SOF10, DAC = 0xCC, EOI = 0xD9, SOS, DQT, DNL, DRI };
enum { APP0 = 0xE0, APP1, APP15 = 0xEF, COM = 0xFE };
enum { MAX_SIDE = 65500, MAX_SCANS = 200, MAX_COMPONENTS = 4, EXIF_BYTES = 6 };
enum { MAX_VALUES = (1 << 29) - 1 };  // height * width * components
// Bits of Huffman tables: 0 to 3 for DC, 16 to 19 for AC. The standard tables are 0 and 1 of both.
enum { AC = 16, STANDARD_TABLES = 3 | 3 << AC };

static int number_at(const uint8_t *at) { return at[0] << 8 | at[1]; }

// `at` is the length of the segment. Like the next ones, returns 0 if something is wrong, or rare.
static int take_frame(Jpeg *jpeg, int code, const uint8_t *at, int length) {
  if (jpeg->code || length < 8 || length != 8 + 3 * at[7] || at[2] != 8) return 0;
  int64_t height = number_at(at + 3), width = number_at(at + 5), components = at[7];
  if (components != 1 && components != 3 && components != 4) return 0;
  if (!height || !width || height > MAX_SIDE || width > MAX_SIDE || height * width * components > MAX_VALUES) return 0;
  jpeg->code = code;
  jpeg->height = (int)height;
  jpeg->width = (int)width;
  jpeg->num_components = (int)components;
  jpeg->components = at + 8;
  return 1;
}

static int take_tables(Jpeg *jpeg, int code, const uint8_t *at, const uint8_t *end) {
  while (at < end) {
    int number = *at & 15, kind = *at >> 4;
    if (number > 3 || kind > 1) return 0;
    if (code == DQT) {
      jpeg->quantization |= 1u << number;
      at += kind ? 129 : 65;
    } else {
      if (end - at < 17) return 0;
      int num_codes = 0;
      for (int i = 1; i < 17; i++) num_codes += at[i];
      jpeg->huffman |= 1u << (AC * kind + number);
      at += 17 + num_codes;
    }
  }
  return at == end;
}

// Returns whether all that the scan needs is there. `at` is the length of the segment.
static int has_needed(const Jpeg *jpeg, const uint8_t *at, int length) {
  int num_in_scan = at[2], is_sequential = jpeg->code == SOF0 || jpeg->code == SOF1;
  int needs_dc = is_sequential, needs_ac = is_sequential, used = 0;
  uint32_t huffman = jpeg->huffman | (is_sequential ? STANDARD_TABLES : 0);
  if (jpeg->code == SOF2) {
    needs_ac = at[length - 3] > 0;
    needs_dc = !needs_ac && !(at[length - 1] >> 4);
  }
  for (int i = 0; i < num_in_scan; i++) {
    const uint8_t *in_scan = at + 3 + 2 * i;
    int component = 0, dc = in_scan[1] >> 4, ac = in_scan[1] & 15;
    while (component < jpeg->num_components &&
           (used >> component & 1 || jpeg->components[3 * component] != in_scan[0]))
      component++;
    if (component == jpeg->num_components) return 0;
    used |= 1 << component;
    int table = jpeg->components[3 * component + 2];
    if (table > 3 || !(jpeg->quantization >> table & 1)) return 0;
    if (needs_dc && !(huffman >> dc & 1)) return 0;
    if (needs_ac && !(huffman >> (AC + ac) & 1)) return 0;
  }
  return 1;
}

// Returns whether this is a whole JPEG of the usual kind, as `jpeg_structure.check_jpeg` finds it.
int is_plain_jpeg(Jpeg *jpeg, const uint8_t *start, const uint8_t *end) {
  const uint8_t *position = start + 2, *marker;
  int has_scan = 0, num_scans = 0, may_skip = 0;
  if (end - start < 4 || start[0] != 0xFF || start[1] != 0xD8) return 0;
  while ((marker = next_marker(position, end))) {
    int code = marker[1];
    if (marker != position && !may_skip)
      for (const uint8_t *at = position; at < marker; at++)
        if (*at != 0xFF) return 0;  // a stray byte
    if (code == EOI) return has_scan;
    const uint8_t *at = marker + 2;
    if (end - at < 2) return 0;
    int length = number_at(at);
    if (length < 2 || length > end - at) return 0;
    may_skip = 0;
    if ((code >= APP0 && code <= APP15) || code == COM) {
      may_skip = !has_scan;
      if (code == APP1 && length >= 2 + EXIF_BYTES && !memcmp(at + 2, "Exif\0", EXIF_BYTES)) {
        if (jpeg->exif) return 0;
        jpeg->exif = at + 2 + EXIF_BYTES - start;
        jpeg->exif_end = at + length - start;
      }
    } else if (code == SOS) {
      if (!jpeg->code || length < 8 || length > 14 || length != 6 + 2 * at[2] || !has_needed(jpeg, at, length)) return 0;
      if (++num_scans > MAX_SCANS) return 0;
      has_scan = may_skip = 1;
    } else if (code == DHT || code == DQT) {
      if (!take_tables(jpeg, code, at + 2, at + length)) return 0;
    } else if (code == SOF0 || code == SOF1 || code == SOF2 || code == SOF9 || code == SOF10) {
      if (!take_frame(jpeg, code, at, length)) return 0;
    } else if (code != DAC && code != DNL && code != DRI) {
      return 0;
    }
    position = at + length;
  }
  return 0;
}

// --- orientation ----------------------------------------------------------------------------------------------------

enum { ORIENTATION_TAG = 0x0112, BYTE = 1, SHORT = 3, LONG = 4, ENTRY_BYTES = 12 };

static uint32_t number_of(const uint8_t *at, int num_bytes, int is_big) {
  uint32_t number = 0;
  for (int i = 0; i < num_bytes; i++) number |= (uint32_t)at[i] << 8 * (is_big ? num_bytes - 1 - i : i);
  return number;
}

// Returns whether the EXIF data of a checked JPEG, if it has some, ask for no turn, as `exif.read_orientation` reads them.
int is_upright(const Jpeg *jpeg, const uint8_t *start) {
  const uint8_t *tiff = start + jpeg->exif;
  uint64_t size = jpeg->exif_end - jpeg->exif;
  if (!jpeg->exif || size < 8) return 1;
  int is_big = !memcmp(tiff, "MM\0*", 4);
  if (!is_big && memcmp(tiff, "II*\0", 4)) return 1;
  uint64_t first = number_of(tiff + 4, 4, is_big);
  if (first + 2 > size) return 1;
  uint64_t count = number_of(tiff + first, 2, is_big), in_size = (size - first - 2) / ENTRY_BYTES;
  const uint8_t *entry = tiff + first + 2;
  for (uint64_t i = 0; i < count && i < in_size; i++, entry += ENTRY_BYTES) {
    uint32_t type = number_of(entry + 2, 2, is_big);
    if (number_of(entry, 2, is_big) != ORIENTATION_TAG || number_of(entry + 4, 4, is_big) != 1) continue;
    if (type != BYTE && type != SHORT && type != LONG) continue;
    uint32_t turn = number_of(entry + 8, (int)(type == BYTE ? 1 : type == SHORT ? 2 : 4), is_big);
    return turn < 2 || turn > 8;
  }
  return 1;
}
