// The CRC32C of records, as TFRecord stores it, with the processor's own instruction (SSE 4.2, or ARMv8's CRC32), or else
// with tables.
//
// The instruction takes one cycle and its result three, so three runs of bytes are summed side by side. The CRC is linear
// over XOR: the sum of a run, carried over the bytes behind it, is added to the sum of those.
//
// Sources: https://www.tensorflow.org/tutorials/load_data/tfrecord (mask); RFC 3720, appendix B.4 (polynomial); Gopal et
// al., Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction (Intel, 2011); the matrices of zeros as in Mark
// Adler's crc32c.c, https://stackoverflow.com/a/17646775; Kounavis and Berry, A Systematic Approach to Building High
// Performance, Software-based, CRC Generators (Intel, 2005), for the tables.

#include "crc32c.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Clang defines __GNUC__ too. Its intrinsics for ARM need the instruction to be allowed for the whole file.
#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define TARGET __attribute__((target("sse4.2")))
#define ADD_EIGHT(sum, bytes) _mm_crc32_u64(sum, bytes)
#define ADD_ONE(sum, byte) _mm_crc32_u8((uint32_t)(sum), byte)
#define HAS_INSTRUCTION __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)  // as on all Macs
#include <arm_acle.h>
#define TARGET
#define ADD_EIGHT(sum, bytes) __crc32cd((uint32_t)(sum), bytes)
#define ADD_ONE(sum, byte) __crc32cb((uint32_t)(sum), byte)
#define HAS_INSTRUCTION 1
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#include <sys/auxv.h>
#define TARGET __attribute__((target("+crc")))
#define ADD_EIGHT(sum, bytes) __builtin_aarch64_crc32cx((uint32_t)(sum), bytes)
#define ADD_ONE(sum, byte) __builtin_aarch64_crc32cb((uint32_t)(sum), byte)
#define HAS_INSTRUCTION (getauxval(AT_HWCAP) >> 7 & 1)  // HWCAP_CRC32
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "numbers are stored as they are in memory, and TFRecord wants the lowest byte first"
#endif

enum { POLYNOMIAL = 0x82F63B78, NUM_POWERS = 48, RUN_LOG = 10, RUN_BYTES = 1 << RUN_LOG };

static uint32_t zeros[NUM_POWERS][32];  // by bit of a sum: what it becomes behind 2**power zeros
static uint32_t behind[8][256];         // by byte: its sum behind 0 to 7 zeros
static uint32_t carried[4][256];        // by byte of a sum: what it becomes behind RUN_BYTES zeros
static pthread_once_t is_prepared = PTHREAD_ONCE_INIT;

static uint32_t multiply(const uint32_t *matrix, uint32_t bits) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++) product ^= matrix[i] & (0u - (bits >> i & 1));
  return product;
}

static uint64_t eight_bytes(const uint8_t *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t add_by_tables(uint32_t sum, const uint8_t *data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    uint64_t bytes = eight_bytes(data) ^ sum;
    sum = 0;
    for (int i = 0; i < 8; i++) sum ^= behind[7 - i][bytes >> (8 * i) & 255];
  }
  for (; size; data++, size--) sum = sum >> 8 ^ behind[0][(sum ^ *data) & 255];
  return sum;
}

#ifdef HAS_INSTRUCTION
static uint32_t carry(uint32_t sum) {
  return carried[0][sum & 255] ^ carried[1][sum >> 8 & 255] ^ carried[2][sum >> 16 & 255] ^ carried[3][sum >> 24];
}

TARGET static uint32_t add_by_instruction(uint32_t before, const uint8_t *data, size_t size) {
  uint64_t sum = before;
  for (; size >= 3 * RUN_BYTES; data += 3 * RUN_BYTES, size -= 3 * RUN_BYTES) {
    uint64_t second = 0, third = 0;
    for (int i = 0; i < RUN_BYTES; i += 8) {
      sum = ADD_EIGHT(sum, eight_bytes(data + i));
      second = ADD_EIGHT(second, eight_bytes(data + RUN_BYTES + i));
      third = ADD_EIGHT(third, eight_bytes(data + 2 * RUN_BYTES + i));
    }
    sum = carry(carry((uint32_t)sum) ^ (uint32_t)second) ^ (uint32_t)third;
  }
  for (; size >= 8; data += 8, size -= 8) sum = ADD_EIGHT(sum, eight_bytes(data));
  for (; size; data++, size--) sum = ADD_ONE(sum, *data);
  return (uint32_t)sum;
}
#endif

static uint32_t (*add)(uint32_t, const uint8_t *, size_t) = add_by_tables;

static void prepare(void) {
  uint32_t power[32], square[32];
  power[0] = POLYNOMIAL;  // one bit of zeros
  for (int i = 1; i < 32; i++) power[i] = 1u << (i - 1);
  for (int doubling = 0; doubling < 3 + NUM_POWERS; doubling++) {
    if (doubling >= 3) memcpy(zeros[doubling - 3], power, sizeof power);
    for (int i = 0; i < 32; i++) square[i] = multiply(power, power[i]);
    memcpy(power, square, sizeof power);
  }
  for (uint32_t byte = 0; byte < 256; byte++) {
    for (int position = 0; position < 4; position++)
      carried[position][byte] = multiply(zeros[RUN_LOG], byte << (8 * position));
    behind[0][byte] = multiply(zeros[0], byte);
    for (int count = 1; count < 8; count++) behind[count][byte] = multiply(zeros[0], behind[count - 1][byte]);
  }
#ifdef HAS_INSTRUCTION
  if (HAS_INSTRUCTION && !getenv("IMAGEBEAM_PLAIN_C")) add = add_by_instruction;  // for tests
#endif
}

void prepare_crc32c(void) { pthread_once(&is_prepared, prepare); }

uint32_t extend_crc32c(uint32_t crc, const uint8_t *data, size_t size) { return ~add(~crc, data, size); }

uint32_t join_crc32c(uint32_t of_a, uint32_t of_b, uint64_t size_of_b) {
  for (int power = 0; size_of_b; power++, size_of_b >>= 1)
    if (size_of_b & 1) of_a = multiply(zeros[power], of_a);
  return of_a ^ of_b;
}

uint32_t mask_crc32c(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xA282EAD8u; }
