// Handles requests without end in a method, whose arguments are all that C++ has; in each the size is another number of
// 0 to 40, from which every argument follows.
#include <string>
#include <string_view>
#include <time.h>

struct Limits {
	short low;
	int high;
};

class Counted {
protected:
	long served = 0;
};

class Server : public Counted {
public:
	Limits limits = {};
	std::string name = "server";

	__attribute__((noinline, noclone)) void handle(const std::string &text, std::string_view tag, const int &weight,
						       double scale, Limits given)
	{
		served++;
		total = total + text.size() + tag.size() + weight + scale + given.low + given.high;
	}

	__attribute__((noinline, noclone)) void handle(int other) { total = total + other; }

private:
	volatile double total = 0;
};

int main()
{
	Server server;

	for (int n = 0;; n++) {
		int size = n % 41, weight = -size;
		std::string text(size, 'x'), tag(100 + size, 'y');

		server.limits = { static_cast<short>(-size), size };
		server.handle(text, tag, weight, 0.5, { static_cast<short>(size), 1000 + size });
		if (size == 40)
			server.handle(size);
		struct timespec pause = { 0, 1000000 };
		nanosleep(&pause, nullptr);
	}
}
