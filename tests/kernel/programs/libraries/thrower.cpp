// Throws exceptions and catches them: libstdc++ has a USDT point at each.
extern "C" int throw_some(int times)
{
	int caught = 0;

	for (int i = 0; i < times; i++) {
		try {
			throw i;
		} catch (int) {
			caught++;
		}
	}
	return caught;
}
