// frames_fuzz FILE SEED COUNT: reads copies of a section of call-frame information with a few bytes changed, cut off
// somewhere, in every mode. Each copy has just the memory it needs, so that sanitizers see what reads beyond it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"

struct frames *frames_read(const struct section *section, u64 address, u32 flags, u64 base, const u64 *code,
			   u64 code_count, const struct function *known, u64 known_count);
const void *frames_array(const struct frames *f, int which, u64 *count);
void frames_free(struct frames *f);

#define MOST (64 * 1024)

static u8 whole[MOST];

static void damage(u8 *data, u64 size)
{
	static const u8 telling[] = {0, 1, 4, 0x0a, 0x0b, 0x0f, 0x10, 0x7f, 0x80, 0xff};

	for (int i = rand() % 5; i > 0; i--)
		data[rand() % size] = rand() % 2 ? rand() : telling[rand() % sizeof(telling)];
}

int main(int argc, char **argv)
{
	const u64 code[] = {0, (u64)1 << 40};
	const struct function known[] = {{16, 64}, {256, 4096}};
	FILE *file = fopen(argv[argc - 3], "rb");
	u64 size = fread(whole, 1, MOST, file), rows = 0, lost = 0, count;

	srand(atoi(argv[argc - 2]));
	for (int turn = atoi(argv[argc - 1]); turn > 0; turn--) {
		struct section section = {NULL, rand() % 4 ? size : 1 + rand() % size};
		u8 *copy = malloc(section.size);
		struct frames *frames;

		memcpy(copy, whole, section.size);
		damage(copy, section.size);
		section.data = copy;
		frames = frames_read(&section, 0x10000000, rand() % 4, rand() % 2 ? 0 : 0x1000, code, 1, known, rand() % 3);
		frames_array(frames, 0, &count);
		rows += count;
		frames_array(frames, 2, &count);
		lost += count;
		frames_free(frames);
		free(copy);
	}
	printf("%lu %lu\n", rows, lost);
	return 0;
}
