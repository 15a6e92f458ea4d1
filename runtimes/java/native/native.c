/*
 * What a parked JVM cannot do in Java as it becomes a function's process: change
 * its working directory, and the environment that libc, children and the time zone
 * go by. Environment.java loads it.
 *
 * Built without jni.h, which comes with a JDK, and without a C library of its own:
 * its symbols are found in the process's.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* GetDirectBufferAddress's place in the function table of a JNIEnv (JNI
 * specification, chapter 4). */
#define DIRECT_BUFFER_ADDRESS 230

typedef void *(*direct_buffer_address)(void *env, void *buffer);

/*
 * Takes a direct buffer "directory\0NAME=value\0NAME=value\0\0" and returns 0 or
 * an errno.
 */
int Java_fre_bootstrap_Environment_enter(void ***env, void *class, void *buffer);

int Java_fre_bootstrap_Environment_enter(void ***env, void *class, void *buffer)
{
	direct_buffer_address address;
	char *p, *value;

	(void)class;
	memcpy(&address, &(*env)[DIRECT_BUFFER_ADDRESS], sizeof(address));
	p = address(env, buffer);
	if (chdir(p) != 0 || clearenv() != 0)
		return errno;
	while (*(p += strlen(p) + 1)) {
		value = strchr(p, '=');
		if (value == NULL)
			return EINVAL;
		*value++ = '\0';
		if (setenv(p, value, 1) != 0)
			return errno;
		p = value;
	}
	tzset();
	return 0;
}
