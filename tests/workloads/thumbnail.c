// thumbnail IMAGE [plain|smooth|sharpen]: decode an image, filter it, scale it down, write it to standard output.
// thumbnail --make KIND SIDE: write a square image of a KIND (grey, rgb, indexed) to standard output.
//
// An image is a line "KIND SIDE" followed by its pixels: 1 byte each, 3 for rgb; indexed ones have 256 colours in front.
//
// The planted bug: smooth_indexed() keeps an indexed image indexed, and looks for the nearest of 256 colours for every
// pixel, so smoothing is some twenty times slower for indexed images only. Everything else costs about the same.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLOURS 256
#define THUMB 64
#define NOINLINE __attribute__((noinline, noclone))

struct pixel {
	uint8_t red, green, blue, index;
};

static struct pixel palette[COLOURS];

NOINLINE static void die(const char *why)
{
	fprintf(stderr, "thumbnail: %s\n", why);
	exit(1);
}

NOINLINE static void read_bytes(FILE *file, void *into, size_t size)
{
	if (fread(into, 1, size, file) != size)
		die("the image is cut off");
}

NOINLINE static void read_palette(FILE *file)
{
	uint8_t bytes[COLOURS][3];

	read_bytes(file, bytes, sizeof(bytes));
	for (int i = 0; i < COLOURS; i++)
		palette[i] = (struct pixel){ bytes[i][0], bytes[i][1], bytes[i][2], i };
}

NOINLINE static void decode_grey(const uint8_t *bytes, struct pixel *row, int side)
{
	for (int x = 0; x < side; x++)
		row[x] = (struct pixel){ bytes[x], bytes[x], bytes[x], 0 };
}

NOINLINE static void decode_rgb(const uint8_t *bytes, struct pixel *row, int side)
{
	for (int x = 0; x < side; x++)
		row[x] = (struct pixel){ bytes[3 * x], bytes[3 * x + 1], bytes[3 * x + 2], 0 };
}

NOINLINE static void decode_indexed(const uint8_t *bytes, struct pixel *row, int side)
{
	for (int x = 0; x < side; x++)
		row[x] = palette[bytes[x]];
}

NOINLINE static struct pixel *decode(FILE *file, const char *kind, int side)
{
	int width = strcmp(kind, "rgb") ? side : 3 * side;
	struct pixel *pixels = malloc(sizeof(*pixels) * side * side);
	uint8_t *bytes = malloc(width);

	if (!strcmp(kind, "indexed"))
		read_palette(file);
	for (int y = 0; y < side; y++) {
		read_bytes(file, bytes, width);
		if (!strcmp(kind, "grey"))
			decode_grey(bytes, pixels + y * side, side);
		else if (!strcmp(kind, "rgb"))
			decode_rgb(bytes, pixels + y * side, side);
		else
			decode_indexed(bytes, pixels + y * side, side);
	}
	free(bytes);
	return pixels;
}

static struct pixel average(struct pixel a, struct pixel b)
{
	return (struct pixel){ (a.red + b.red) / 2, (a.green + b.green) / 2, (a.blue + b.blue) / 2, a.index };
}

NOINLINE static void smooth_row(struct pixel *row, int side)
{
	for (int x = 1; x < side; x++)
		row[x] = average(row[x - 1], row[x]);
}

NOINLINE static void sharpen_row(struct pixel *row, int side)
{
	for (int x = 1; x < side; x++) {
		int edge = 2 * row[x].green - row[x - 1].green;
		row[x].green = edge < 0 ? 0 : edge > 255 ? 255 : edge;
	}
}

NOINLINE static struct pixel nearest_colour(struct pixel wanted)
{
	int best = 0, least = 1 << 30;

	for (int i = 0; i < COLOURS; i++) {
		int r = palette[i].red - wanted.red, g = palette[i].green - wanted.green, b = palette[i].blue - wanted.blue;
		int distance = r * r + g * g + b * b;

		if (distance < least) {
			least = distance;
			best = i;
		}
	}
	return palette[best];
}

NOINLINE static void smooth_indexed(struct pixel *row, int side)
{
	for (int x = 1; x < side; x++)
		row[x] = nearest_colour(average(row[x - 1], row[x]));
}

NOINLINE static void filter(struct pixel *pixels, const char *kind, const char *option, int side)
{
	for (int y = 0; y < side; y++) {
		struct pixel *row = pixels + y * side;

		if (!strcmp(option, "sharpen"))
			sharpen_row(row, side);
		else if (!strcmp(option, "smooth") && !strcmp(kind, "indexed"))
			smooth_indexed(row, side);
		else if (!strcmp(option, "smooth"))
			smooth_row(row, side);
	}
}

NOINLINE static void scale_row(const struct pixel *pixels, int side, int y, unsigned sums[THUMB][3])
{
	for (int x = 0; x < side; x++) {
		struct pixel p = pixels[y * side + x];
		unsigned *sum = sums[x * THUMB / side];

		sum[0] += p.red;
		sum[1] += p.green;
		sum[2] += p.blue;
	}
}

NOINLINE static void scale(const struct pixel *pixels, int side)
{
	static unsigned sums[THUMB][THUMB][3];

	for (int y = 0; y < side; y++)
		scale_row(pixels, side, y, sums[y * THUMB / side]);
	fwrite(sums, sizeof(sums), 1, stdout);
}

static int make(const char *kind, int side)
{
	int bytes = side * side * (strcmp(kind, "rgb") ? 1 : 3) + (strcmp(kind, "indexed") ? 0 : 3 * COLOURS);
	uint32_t random = side;

	printf("%s %d\n", kind, side);
	while (bytes--) {
		random = random * 1664525 + 1013904223;
		putchar(random >> 24);
	}
	return 0;
}

int main(int argc, char **argv)
{
	char kind[16];
	int side;
	FILE *file;

	if (argc == 4 && !strcmp(argv[1], "--make"))
		return make(argv[2], atoi(argv[3]));
	if (argc < 2 || !(file = fopen(argv[1], "rb")))
		die("cannot open the image");
	if (fscanf(file, "%15s %d", kind, &side) != 2 || side < THUMB || side > 10000 || fgetc(file) != '\n')
		die("this is no image");
	struct pixel *pixels = decode(file, kind, side);
	filter(pixels, kind, argc > 2 ? argv[2] : "plain", side);
	scale(pixels, side);
	free(pixels);
	fclose(file);
	return 0;
}
