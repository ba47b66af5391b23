// The frames of TFRecords: their lengths and checksums, with the processor's own instruction (SSE 4.2).

#include "record_frames.h"

#ifdef HAS_FRAMES
#include <immintrin.h>
#include <stddef.h>
#include <string.h>

// crc32c, reflected, without the inversion before and after. Source: RFC 3720, appendix B.4; the three streams and the
// matrices of zeros as in Mark Adler's crc32c.c, https://stackoverflow.com/a/17646775.
#define SSE42 __attribute__((target("sse4.2")))

enum { POLYNOMIAL = 0x82F63B78, NUM_POWERS = 48, LONG_LOG = 13, MIDDLE_LOG = 10, SHORT_LOG = 7 };

// What 2**power bytes of zeros make of each bit of a checksum.
static uint32_t zeros[NUM_POWERS][32];

static uint32_t multiply(const uint32_t *matrix, uint32_t bits) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++) product ^= matrix[i] & (0u - (bits >> i & 1));
  return product;
}

static void make_zeros(void) {
  uint32_t power[32], square[32];
  power[0] = POLYNOMIAL;  // one bit of zeros
  for (int i = 1; i < 32; i++) power[i] = 1u << (i - 1);
  for (int doubling = 0; doubling < 3 + NUM_POWERS; doubling++) {
    if (doubling >= 3) memcpy(zeros[doubling - 3], power, sizeof power);
    for (int i = 0; i < 32; i++) square[i] = multiply(power, power[i]);
    memcpy(power, square, sizeof power);
  }
}

// The checksum of A followed by B, from the checksums of both.
static uint32_t join(uint32_t of_a, uint32_t of_b, uint64_t length_of_b) {
  for (int power = 0; length_of_b; power++, length_of_b >>= 1)
    if (length_of_b & 1) of_a = multiply(zeros[power], of_a);
  return of_a ^ of_b;
}

// Three streams at once, since the instruction takes three cycles and a new one can begin in each.
SSE42 static uint64_t extend_thrice(uint64_t crc, const uint8_t *at, int log_length) {
  size_t length = (size_t)1 << log_length;
  uint64_t second = 0, third = 0, word;
  for (const uint8_t *end = at + length; at < end; at += 8) {
    memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
    memcpy(&word, at + length, 8);
    second = _mm_crc32_u64(second, word);
    memcpy(&word, at + 2 * length, 8);
    third = _mm_crc32_u64(third, word);
  }
  return multiply(zeros[log_length], multiply(zeros[log_length], (uint32_t)crc) ^ (uint32_t)second) ^ third;
}

SSE42 uint32_t extend_crc32c(uint32_t crc32c, const uint8_t *at, size_t length) {
  uint64_t crc = ~crc32c, word;
  for (int log = LONG_LOG; log >= SHORT_LOG; log -= LONG_LOG - MIDDLE_LOG)
    for (size_t block = (size_t)3 << log; length >= block; at += block, length -= block)
      crc = extend_thrice(crc, at, log);
  for (; length >= 8; at += 8, length -= 8) {
    memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  while (length--) crc = _mm_crc32_u8((uint32_t)crc, *at++);
  return ~(uint32_t)crc;
}

int prepare_frames(void) {
  make_zeros();
  return __builtin_cpu_supports("sse4.2");
}

static uint8_t *put_masked(uint8_t *at, uint32_t crc) {
  uint32_t masked = (crc >> 15 | crc << 17) + 0xA282EAD8;
  memcpy(at, &masked, 4);
  return at + 4;
}

uint32_t put_framed(uint8_t *start, const uint8_t *prefix, uint64_t prefix_size, const uint8_t *payload,
                    uint64_t payload_size, uint32_t crc) {
  uint64_t length = prefix_size + payload_size;
  uint8_t *at = start + HEADER_BYTES;
  memcpy(start, &length, 8);
  put_masked(start + 8, extend_crc32c(0, start, 8));
  crc = extend_crc32c(crc, start, HEADER_BYTES);
  uint32_t of_record = extend_crc32c(0, prefix, prefix_size);
  if (prefix != at) memcpy(at, prefix, prefix_size);
  of_record = extend_crc32c(of_record, payload, payload_size);
  if (payload != at + prefix_size) memcpy(at + prefix_size, payload, payload_size);
  put_masked(at + length, of_record);
  return extend_crc32c(join(crc, of_record, length), at + length, 4);
}
#endif
