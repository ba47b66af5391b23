// The checksum of records. See crc32c.c.

#include <stddef.h>
#include <stdint.h>

// Makes the tables. Call this once before the functions below.
void prepare_crc32c(void);

// The checksum of the bytes before, whose checksum is given, and of `size` bytes; 0 is that of no bytes.
uint32_t extend_crc32c(uint32_t crc, const uint8_t *data, size_t size);

// The checksum of A followed by B, from the checksums of both.
uint32_t join_crc32c(uint32_t of_a, uint32_t of_b, uint64_t size_of_b);

// The checksum as a record stores it.
uint32_t mask_crc32c(uint32_t crc);
