/*
 * enter: becomes a function whose channel is a Unix socket with a name.
 *
 * usage: enter SOCKET PROGRAM [ARG...]
 *
 * A container cannot inherit the benchmark's file descriptors, but it can be
 * given a socket's directory: this program connects, makes the connection
 * descriptor 3 as the function expects it, and executes the function. Nothing
 * of it is left then.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CHANNEL = 3 };

int main(int argc, char **argv)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd;

	if (argc < 3 || strlen(argv[1]) >= sizeof to.sun_path) {
		fprintf(stderr, "usage: enter SOCKET PROGRAM [ARG...]\n");
		return 2;
	}
	strcpy(to.sun_path, argv[1]);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
		perror(argv[1]);
		return 1;
	}
	if (fd != CHANNEL && (dup2(fd, CHANNEL) < 0 || close(fd) < 0)) {
		perror("dup2");
		return 1;
	}
	execv(argv[2], argv + 2);
	perror(argv[2]);
	return 127;
}
