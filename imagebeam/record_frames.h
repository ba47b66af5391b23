// Makes the frames of TFRecords, where the processor has an instruction for the checksum. See record_frames.c.

#ifndef RECORD_FRAMES_H
#define RECORD_FRAMES_H
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#define HAS_FRAMES

enum { FRAME_BYTES = 16, HEADER_BYTES = 12 };

// Returns whether this processor has the instruction; without it, nothing else may be called. Called first, and once.
int prepare_frames(void);

// Returns the crc32c of the bytes before, which is given, and of `length` bytes.
uint32_t extend_crc32c(uint32_t crc32c, const uint8_t *at, size_t length);

// Puts a record at `start`. Its prefix or its payload may be there already. The checksums are those of the bytes before
// they are copied; returns that of the bytes before, which is given, and of the record.
uint32_t put_framed(uint8_t *start, const uint8_t *prefix, uint64_t prefix_size, const uint8_t *payload,
                    uint64_t payload_size, uint32_t crc);
#endif
#endif
