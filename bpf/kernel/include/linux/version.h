// LINUX_VERSION_CODE comes from the command line: it is the running kernel's, not that of any headers.
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
