/* System calls that leave errno alone: a sandbox's child shares the spawner's memory,
 * and so the only errno. sys returns the kernel's result: -errno for an error. */
#ifndef FRE_SYSCALL_H
#define FRE_SYSCALL_H

#include <sys/syscall.h>

#ifndef __x86_64__
#error "fre-spawner knows how to make system calls and clone3 with a stack on x86-64 only"
#endif

static inline long sys6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

#define SYS_ARGS(nr, a, b, c, d, e, f, ...) \
	sys6((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define sys(...) SYS_ARGS(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

#endif
