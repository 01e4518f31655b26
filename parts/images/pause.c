/* The process that holds a pod's namespaces: waits for a signal, reaps what is left to it. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signo) { (void)signo; _exit(0); }

static void reap(int signo) {
  (void)signo;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = leave};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
      sigaction(SIGCHLD, &on_child, NULL))
    return 1;
  for (;;)
    pause();
}
