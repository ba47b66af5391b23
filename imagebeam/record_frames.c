// The frames of TFRecords: their lengths and checksums.

#include "record_frames.h"

#include <string.h>

#include "crc32c.h"

static uint8_t *put_masked(uint8_t *at, uint32_t crc) {
  uint32_t masked = mask_crc32c(crc);
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
  return extend_crc32c(join_crc32c(crc, of_record, length), at + length, 4);
}
