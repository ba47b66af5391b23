// The CRC32C of records, as TFRecord stores it, with the processor's own instruction (SSE 4.2).
//
// The instruction takes one cycle and its result three, so three runs of bytes are summed side by side. The CRC is linear
// over XOR: the sum of a run, carried over the bytes behind it, is added to the sum of those.
//
// Sources: https://www.tensorflow.org/tutorials/load_data/tfrecord (mask); RFC 3720, appendix B.4 (polynomial); Gopal et
// al., Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction (Intel, 2011); the matrices of zeros as in Mark
// Adler's crc32c.c, https://stackoverflow.com/a/17646775.

#include "crc32c.h"

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <nmmintrin.h>
#include <pthread.h>
#include <string.h>

#define SSE42 __attribute__((target("sse4.2")))

enum { POLYNOMIAL = 0x82F63B78, NUM_POWERS = 48, RUN_LOG = 10, RUN_BYTES = 1 << RUN_LOG };

static uint32_t zeros[NUM_POWERS][32];  // by bit of a sum: what it becomes behind 2**power zeros
static uint32_t carried[4][256];        // by byte of a sum: what it becomes behind RUN_BYTES zeros
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

static uint32_t multiply(const uint32_t *matrix, uint32_t bits) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++) product ^= matrix[i] & (0u - (bits >> i & 1));
  return product;
}

static void prepare(void) {
  uint32_t power[32], square[32];
  power[0] = POLYNOMIAL;  // one bit of zeros
  for (int i = 1; i < 32; i++) power[i] = 1u << (i - 1);
  for (int doubling = 0; doubling < 3 + NUM_POWERS; doubling++) {
    if (doubling >= 3) memcpy(zeros[doubling - 3], power, sizeof power);
    for (int i = 0; i < 32; i++) square[i] = multiply(power, power[i]);
    memcpy(power, square, sizeof power);
  }
  for (int position = 0; position < 4; position++)
    for (uint32_t byte = 0; byte < 256; byte++)
      carried[position][byte] = multiply(zeros[RUN_LOG], byte << (8 * position));
}

static uint32_t carry(uint32_t sum) {
  return carried[0][sum & 255] ^ carried[1][sum >> 8 & 255] ^ carried[2][sum >> 16 & 255] ^ carried[3][sum >> 24];
}

static uint64_t eight_bytes(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

int has_fast_crc32c(void) {
  pthread_once(&is_prepared, prepare);
  return __builtin_cpu_supports("sse4.2");
}

SSE42 uint32_t extend_crc32c(uint32_t crc, const uint8_t *data, size_t size) {
  uint64_t sum = ~crc;
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
  return ~last;
}

uint32_t join_crc32c(uint32_t of_a, uint32_t of_b, uint64_t size_of_b) {
  for (int power = 0; size_of_b; power++, size_of_b >>= 1)
    if (size_of_b & 1) of_a = multiply(zeros[power], of_a);
  return of_a ^ of_b;
}

#else

int has_fast_crc32c(void) { return 0; }

uint32_t extend_crc32c(uint32_t crc, const uint8_t *data, size_t size) { return 0; }

uint32_t join_crc32c(uint32_t of_a, uint32_t of_b, uint64_t size_of_b) { return 0; }

#endif

uint32_t mask_crc32c(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; }
