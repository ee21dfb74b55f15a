#pragma once
#define CONFIG_BPF_SYSCALL 1
