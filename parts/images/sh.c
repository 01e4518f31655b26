/* Stands in front of busybox's shell, whose Debian build drops variables with names like `data-1`
 * from the environment it hands on: the one command `env` is run directly. */
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "-c") && !strcmp(argv[2], "env")) {
    char *env[] = {"env", NULL};
    execv("/bin/busybox", env);
    return 127;
  }
  execv("/bin/busybox", argv);
  return 127;
}
