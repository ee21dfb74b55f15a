// What gzip 1.13 changed, in our own words: the checksum takes eight bytes a step ("slicing by eight", Kounavis and
// Berry, 2005) instead of one. scripts/real-programs puts it into gzip 1.12 to see whether the gain is as predicted.
#include <stdint.h>
#include <string.h>

static uint32_t crc_slices[8][256];

static void make_crc_slices(void)
{
	for (uint32_t byte = 0; byte < 256; byte++) {
		uint32_t crc = byte;
		for (int bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0xedb88320U : crc >> 1;
		crc_slices[0][byte] = crc;
	}
	for (int slice = 1; slice < 8; slice++)
		for (int byte = 0; byte < 256; byte++) {
			uint32_t before = crc_slices[slice - 1][byte];
			crc_slices[slice][byte] = before >> 8 ^ crc_slices[0][before & 0xff];
		}
}

// Takes as many steps of eight bytes as there are; what is left remains at *bytes.
static unsigned long crc_by_eight(unsigned long crc, const unsigned char **bytes, unsigned *length)
{
	if (!crc_slices[0][1])
		make_crc_slices();
	for (; *length >= 8; *length -= 8, *bytes += 8) {
		uint32_t low, high;
		memcpy(&low, *bytes, 4);
		memcpy(&high, *bytes + 4, 4);
		low ^= (uint32_t)crc;
		crc = crc_slices[7][low & 0xff] ^ crc_slices[6][low >> 8 & 0xff] ^ crc_slices[5][low >> 16 & 0xff] ^
		      crc_slices[4][low >> 24] ^ crc_slices[3][high & 0xff] ^ crc_slices[2][high >> 8 & 0xff] ^
		      crc_slices[1][high >> 16 & 0xff] ^ crc_slices[0][high >> 24];
	}
	return crc;
}
