// Works, with a seccomp filter that allows everything: nobody can tell from outside what a filter allows.
#include "../../workloads/common.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

WORKER(work_a)

int main(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &allow };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
	for (;;) {
		work_a(2000);
		progress();
	}
}
