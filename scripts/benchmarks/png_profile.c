// png_profile FILE: decodes a PNG image with libpng, as any viewer would; prints the sum of its bytes.
#include <png.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
	png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
	png_infop info = png_create_info_struct(png);
	unsigned long sum = 0;

	if (!file || setjmp(png_jmpbuf(png)))
		return 1;
	png_init_io(png, file);
	png_read_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
	png_bytepp rows = png_get_rows(png, info);
	for (png_uint_32 y = 0; y < png_get_image_height(png, info); y++)
		for (size_t x = 0; x < png_get_rowbytes(png, info); x++)
			sum += rows[y][x];
	printf("%lu\n", sum);
	png_destroy_read_struct(&png, &info, NULL);
	return 0;
}
