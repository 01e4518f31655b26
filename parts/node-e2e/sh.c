/* Stands in front of busybox's shell in the agnhost image: Debian's build drops variables with names
 * like `data-1` (so `env` is run directly), and prefers its own `nc` and `ip` over the real ones (so
 * scripts that use those go to bash). */
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  const char *script = argc >= 3 && !strcmp(argv[1], "-c") ? argv[2] : "";
  if (argc == 3 && !strcmp(script, "env")) {
    char *env[] = {"env", NULL};
    execv("/bin/busybox", env);
    return 127;
  }
  if (strstr(script, "nc ") || strstr(script, "ip "))
    execv("/bin/bash", argv);
  execv("/bin/busybox", argv);
  return 127;
}
