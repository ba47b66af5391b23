// The CRC32C of records, as TFRecord stores it, with the processor's own instruction (SSE 4.2).
//
// The instruction takes one cycle and its result three, so three runs of bytes are summed side by side. The CRC is linear
// over XOR: the sum of a run, carried over the bytes behind it, is added to the sum of those.
//
// Source: https://www.tensorflow.org/tutorials/load_data/tfrecord (mask); Gopal et al., Fast CRC Computation for iSCSI
// Polynomial Using CRC32 Instruction (Intel, 2011).

#include "crc32c.h"

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <nmmintrin.h>
#include <pthread.h>
#include <string.h>

#define SSE42 __attribute__((target("sse4.2")))

enum { RUN_BYTES = 1024 };

static uint32_t carried[4][256];  // by byte of a sum: what it becomes behind RUN_BYTES zeros
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

SSE42 static void prepare(void) {
  for (int position = 0; position < 4; position++)
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint64_t sum = byte << (8 * position);
      for (int i = 0; i < RUN_BYTES; i += 8) sum = _mm_crc32_u64(sum, 0);
      carried[position][byte] = (uint32_t)sum;
    }
}

static uint32_t carry(uint32_t sum) {
  return carried[0][sum & 255] ^ carried[1][sum >> 8 & 255] ^ carried[2][sum >> 16 & 255] ^ carried[3][sum >> 24];
}

static uint64_t eight_bytes(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

int has_fast_crc32c(void) { return __builtin_cpu_supports("sse4.2"); }

SSE42 uint32_t masked_crc32c(const uint8_t *data, size_t size) {
  uint64_t sum = 0xFFFFFFFF;
  pthread_once(&is_prepared, prepare);
  for (; size >= 3 * RUN_BYTES; data += 3 * RUN_BYTES, size -= 3 * RUN_BYTES) {
    uint64_t second = 0, third = 0;
    for (int i = 0; i < RUN_BYTES; i += 8) {
      sum = _mm_crc32_u64(sum, eight_bytes(data + i));
      second = _mm_crc32_u64(second, eight_bytes(data + RUN_BYTES + i));
      third = _mm_crc32_u64(third, eight_bytes(data + 2 * RUN_BYTES + i));
    }
    sum = carry(carry((uint32_t)sum) ^ (uint32_t)second) ^ (uint32_t)third;
  }
  for (; size >= 8; data += 8, size -= 8) sum = _mm_crc32_u64(sum, eight_bytes(data));
  uint32_t last = (uint32_t)sum;
  for (; size; data++, size--) last = _mm_crc32_u8(last, *data);
  last = ~last;
  return (last >> 15 | last << 17) + 0xA282EAD8u;
}

#else

int has_fast_crc32c(void) { return 0; }

uint32_t masked_crc32c(const uint8_t *data, size_t size) { return 0; }

#endif
