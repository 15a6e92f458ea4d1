/* A sandbox to be listed: says "+", and sits. For each 'f' it reads it makes
 * argv[1] files of 64 bytes in /tmp, a thousand to a directory, and says "+"
 * again. It ends with its input. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fill(long files)
{
	char path[64], text[64];

	memset(text, 'x', sizeof(text));
	for (long i = 0; i < files; i++) {
		if (i % 1000 == 0) {
			snprintf(path, sizeof(path), "/tmp/%ld", i / 1000);
			if (mkdir(path, 0755) != 0)
				return -1;
		}
		snprintf(path, sizeof(path), "/tmp/%ld/%ld", i / 1000, i);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
		if (fd < 0 || write(fd, text, sizeof(text)) != (ssize_t)sizeof(text) || close(fd) != 0)
			return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	char c = 0;

	do {
		if (c == 'f' && fill(argc > 1 ? atol(argv[1]) : 0) != 0) {
			perror("sitter");
			return 1;
		}
		if ((c == 0 || c == 'f') && write(1, "+", 1) != 1)
			return 1;
	} while (read(0, &c, 1) == 1);
	return 0;
}
