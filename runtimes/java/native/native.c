/*
 * When a parked JVM becomes a function's process, this library does the part that Java
 * cannot do: it changes the working directory and the environment of libc, of child
 * processes and of the time zone. Environment.java loads the library.
 *
 * Built without jni.h, because jni.h needs a JDK. Not linked to a C library: the
 * dynamic linker resolves the symbols in the C library of the process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Index of GetDirectBufferAddress in the function table of a JNIEnv (JNI
 * specification, chapter 4). */
#define DIRECT_BUFFER_ADDRESS 230

typedef void *(*direct_buffer_address)(void *env, void *buffer);

/*
 * Takes a direct buffer "directory\0NAME=value\0NAME=value\0\0", changes to the
 * directory and replaces the environment. Returns 0 or an errno.
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
