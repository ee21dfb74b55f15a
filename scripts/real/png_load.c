// Load for libpng: two threads decode a picture in memory again and again. The picture is made by libpng itself, with
// the Paeth filter on every line, as encoders choose for photographs.
#define PROGRESS picture_decoded
#include "common.h"
#include <png.h>

static long threads = 2, width = 512, height = 512;
static unsigned char *encoded;
static size_t encoded_size, encoded_room;

struct source {
	size_t at;
};

__attribute__((noreturn)) static void png_die(const char *what)
{
	fprintf(stderr, "png_load: %s\n", what);
	_exit(3);
}

static void append(png_structp png, png_bytep bytes, size_t length)
{
	(void)png;
	if (encoded_size + length > encoded_room)
		png_die("the picture is too large");
	memcpy(encoded + encoded_size, bytes, length);
	encoded_size += length;
}

static void take(png_structp png, png_bytep bytes, size_t length)
{
	struct source *source = png_get_io_ptr(png);

	if (source->at + length > encoded_size)
		png_die("the picture ends too early");
	memcpy(bytes, encoded + source->at, length);
	source->at += length;
}

// Smooth colours: what is left after the filter is short.
static void encode(void)
{
	png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	unsigned char *row = malloc((size_t)width * 4);

	encoded_room = (size_t)(width * height) * 5 + 65536;
	encoded = malloc(encoded_room);
	png_set_write_fn(png, NULL, append, NULL);
	png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, PNG_COLOR_TYPE_RGBA, PNG_INTERLACE_NONE,
		     PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
	png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_PAETH);
	png_write_info(png, info);
	for (long y = 0; y < height; y++) {
		for (long x = 0; x < width; x++) {
			row[4 * x] = (unsigned char)((x * x + y * y) >> 8);
			row[4 * x + 1] = (unsigned char)((x + y) >> 1);
			row[4 * x + 2] = (unsigned char)((x * y) >> 9);
			row[4 * x + 3] = (unsigned char)(255 - (y >> 2));
		}
		png_write_row(png, row);
	}
	png_write_end(png, NULL);
	png_destroy_write_struct(&png, &info);
	free(row);
}

static void decode(unsigned char *row)
{
	struct source source = { 0 };
	png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);

	if (setjmp(png_jmpbuf(png)))
		png_die("the picture cannot be decoded");
	png_set_read_fn(png, &source, take);
	png_read_info(png, info);
	for (long y = 0; y < height; y++)
		png_read_row(png, row, NULL);
	png_read_end(png, NULL);
	png_destroy_read_struct(&png, &info, NULL);
}

static void *serve(void *unused)
{
	unsigned char *row = malloc((size_t)width * 4);

	for (;;) {
		decode(row);
		count_round();
	}
	return unused;
}

int main(int argc, char **argv)
{
	const struct parameter parameters[] = {
		{ OPTION, "threads", &threads, "threads that decode" },
		{ OPTION, "width", &width, "of the picture" },
		{ OPTION, "height", &height, "of the picture" },
		{ 0 },
	};

	parse_arguments(argc, argv, parameters, "threads that decode a PNG in memory");
	encode();
	for (long i = 1; i < threads; i++)
		start_thread(serve, NULL);
	serve(NULL);
}
