// Damaged debug information for the reader of causal/symbols/native, as many inputs as there is time for.
//
//     fuzz SEEDS SECONDS NUMBER
//
// SEEDS holds one input after the other: u64 number of contributions, then per section u64 size and the bytes, then the
// contributions, two addresses of code, and u64 size, bytes and u64 address of .eh_frame. Each is copied into memory of exactly its size, so that AddressSanitizer
// sees every byte read too many. Prints inputs, units left out, and the slowest input; aborts at what takes 5 s.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "frames.h"

struct reader *reader_new(const struct section *sections, const u64 *code, u64 code_count);
bool reader_split(struct reader *r, const struct section *sections, const struct contribution *given, u64 count);
bool reader_lines(struct reader *r);
bool reader_inlines(struct reader *r);
bool reader_names(struct reader *r, const u64 *dies, u64 count, u32 *ids);
void reader_trim(struct reader *r);
void reader_losses(const struct reader *r, u64 *losses);
void reader_free(struct reader *r);
struct frames *frames_read(const struct section *section, u64 address, u32 flags, u64 base, const u64 *code,
			   u64 code_count, const struct function *known, u64 known_count);
const void *frames_array(const struct frames *f, int which, u64 *count);
void frames_free(struct frames *f);

#define MAX_SEEDS 256

struct seed {
	struct section sections[SECTIONS];
	const u8 *contributions;
	u64 contribution_count;
	u64 code[2];
	struct section frames;
	u64 frames_address;
};

static struct seed seeds[MAX_SEEDS];
static u64 state;

// xorshift64*
static u64 draw(u64 below)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1d >> 11) % below;
}

static u64 take(const u8 **at)
{
	u64 value;

	memcpy(&value, *at, sizeof(value));
	*at += sizeof(value);
	return value;
}

static int load(const char *path)
{
	FILE *file = fopen(path, "rb");
	const u8 *at, *end;
	int count = 0;
	u8 *data;
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) <= 0)
		return 0;
	rewind(file);
	data = malloc(size);
	if (!data || fread(data, 1, size, file) != (size_t)size)
		return 0;
	fclose(file);
	for (at = data, end = data + size; at < end && count < MAX_SEEDS; count++) {
		struct seed *s = &seeds[count];
		s->contribution_count = take(&at);
		for (int i = 0; i < SECTIONS; i++) {
			s->sections[i].size = take(&at);
			s->sections[i].data = at;
			at += s->sections[i].size;
		}
		s->contributions = at;
		at += s->contribution_count * sizeof(struct contribution);
		s->code[0] = take(&at);
		s->code[1] = take(&at);
		s->frames.size = take(&at);
		s->frames.data = at;
		at += s->frames.size;
		s->frames_address = take(&at);
	}
	return count;
}

// Bytes that mean something in DWARF: ends, longest numbers, sizes near the limits.
static u8 nasty(void)
{
	static const u8 bytes[] = {0, 1, 2, 4, 8, 0x7f, 0x80, 0x81, 0xc0, 0xfe, 0xff};

	return draw(2) ? bytes[draw(sizeof(bytes))] : draw(256);
}

static u64 damage(u8 *data, u64 size)
{
	static const u64 numbers[] = {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, ~(u64)0, (u64)1 << 63, 0xfffffff0};
	u64 at, other, length, number;

	if (!size)
		return 0;
	at = draw(size);
	switch (draw(8)) {
	case 0: case 1: case 2:
		data[at] = nasty();
		break;
	case 3:
		data[at] ^= 1 << draw(8);
		break;
	case 4:
		number = numbers[draw(sizeof(numbers) / sizeof(*numbers))];
		length = draw(2) ? 8 : 4;
		memcpy(data + at, &number, size - at < length ? size - at : length);
		break;
	case 5: // some bytes from elsewhere
		other = draw(size);
		length = 1 + draw(64);
		if (length > size - at)
			length = size - at;
		if (length > size - other)
			length = size - other;
		memmove(data + at, data + other, length);
		break;
	case 6:
		for (length = draw(16); length && at < size; length--)
			data[at++] = nasty();
		break;
	case 7:
		if (!draw(4))
			size = at;
		break;
	}
	return size;
}

static u8 *copy(const u8 *data, u64 size)
{
	u8 *fresh = malloc(size ? size : 1);

	if (!fresh)
		abort();
	memcpy(fresh, data, size);
	return fresh;
}

static void read_all(struct reader *r, u64 *left_out)
{
	const struct instance *instances;
	u64 losses[4], *dies;
	u32 *ids;

	if (!reader_lines(r))
		abort();
	reader_trim(r);
	if (!reader_inlines(r))
		abort();
	instances = r->instances.data;
	dies = malloc((r->instances.count + 1) * sizeof(*dies));
	ids = malloc((r->instances.count + 1) * sizeof(*ids));
	if (!dies || !ids)
		abort();
	for (u64 i = 0; i < r->instances.count; i++)
		dies[i] = instances[i].die;
	if (!reader_names(r, dies, r->instances.count, ids))
		abort();
	reader_losses(r, losses);
	*left_out += losses[0] + losses[1];
	free(dies);
	free(ids);
}

// Damaged at up to six places; what is cut off is given back, so that the memory ends where the section does.
static struct section damaged(const struct section *given, u64 changes)
{
	struct section s = {copy(given->data, given->size), given->size};

	while (changes--) {
		u64 size = damage((u8 *)s.data, s.size);
		if (size < s.size) {
			u8 *shorter = copy(s.data, size);
			free((void *)s.data);
			s = (struct section){shorter, size};
		}
	}
	return s;
}

static void try_frames(const struct seed *seed, u64 *left_out)
{
	struct section s = damaged(&seed->frames, 1 + draw(6));
	struct frames *f = frames_read(&s, seed->frames_address, draw(4), seed->code[0] & ~(u64)4095, seed->code, 1, NULL, 0);
	u64 lost, no_memory;

	if (!f)
		abort();
	frames_array(f, 2, &lost);
	frames_array(f, 3, &no_memory);
	if (no_memory)
		abort();
	*left_out += lost;
	frames_free(f);
	free((void *)s.data);
}

static void try_one(const struct seed *seed, u64 *left_out)
{
	struct section sections[SECTIONS];
	struct contribution *contributions =
		(void *)copy(seed->contributions, seed->contribution_count * sizeof(*contributions));
	u64 changes = 1 + draw(6);
	struct reader *r;

	for (int i = 0; i < SECTIONS; i++)
		sections[i] = (struct section){copy(seed->sections[i].data, seed->sections[i].size), seed->sections[i].size};
	while (changes) {
		struct section *s = &sections[draw(SECTIONS)], whole = *s;
		if (!s->size)
			continue;
		*s = damaged(&whole, 1);
		free((void *)whole.data);
		changes--;
	}
	if (seed->contribution_count && !draw(4))
		damage((u8 *)contributions, seed->contribution_count * sizeof(*contributions));
	r = reader_new(sections, seed->code, 1);
	if (!r || (seed->contribution_count &&
		   !reader_split(r, sections + S_SPLIT_INFO, contributions, seed->contribution_count)))
		abort();
	read_all(r, left_out);
	reader_free(r);
	for (int i = 0; i < SECTIONS; i++)
		free((void *)sections[i].data);
	free(contributions);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv)
{
	int count = argc == 4 ? load(argv[1]) : 0;
	double began = now(), seconds, slowest = 0;
	u64 inputs = 0, left_out = 0;

	if (!count)
		return 2;
	seconds = atof(argv[2]);
	state = strtoull(argv[3], NULL, 0) * 2 + 1;
	for (double at = began; at - began < seconds;) {
		double took;
		u64 before = state;
		alarm(5); // kills what never ends
		if (!draw(4))
			try_frames(&seeds[draw(count)], &left_out);
		else
			try_one(&seeds[draw(count)], &left_out);
		took = now() - at;
		at += took;
		if (took > slowest)
			slowest = took;
		if (took > 1)
			fprintf(stderr, "slow: %.3f s from state %#llx\n", took, (unsigned long long)before);
		inputs++;
	}
	printf("%llu %llu %.6f\n", (unsigned long long)inputs, (unsigned long long)left_out, slowest);
	return 0;
}
