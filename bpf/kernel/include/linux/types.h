// The integer types bcc's own headers expect from the kernel, and the two register structures of the architecture.
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s8 s8;
typedef __s16 s16;
typedef __s32 s32;
typedef __s64 s64;
typedef __u16 __le16, __be16, __sum16;
typedef __u32 __le32, __be32, __wsum;
typedef __u64 __le64, __be64;
typedef unsigned long size_t;
typedef long ssize_t;
typedef unsigned long uintptr_t;
typedef _Bool bool;
typedef int pid_t;
typedef unsigned int gfp_t;
typedef long long loff_t;

#define __aligned_u64 __u64 __attribute__((aligned(8)))
#define __always_inline inline __attribute__((always_inline))
#define NULL ((void *)0)
#define true 1
#define false 0
#define TASK_COMM_LEN 16

#if defined(__x86_64__) || defined(__TARGET_ARCH_x86) || defined(__TARGET_ARCH_x86_64)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#else
#error "only x86-64 is supported so far"
#endif

struct bpf_perf_event_data {
	struct pt_regs regs;
	u64 sample_period;
	u64 addr;
};
