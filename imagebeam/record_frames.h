// Makes the frames of TFRecords. Needs `has_fast_crc32c`.

#ifndef RECORD_FRAMES_H
#define RECORD_FRAMES_H
#include <stdint.h>

enum { FRAME_BYTES = 16, HEADER_BYTES = 12 };

// Puts a record at `start`. Its prefix or its payload may be there already. The checksums are those of the bytes before
// they are copied; returns that of the bytes before, which is given, and of the record.
uint32_t put_framed(uint8_t *start, const uint8_t *prefix, uint64_t prefix_size, const uint8_t *payload,
                    uint64_t payload_size, uint32_t crc);
#endif
