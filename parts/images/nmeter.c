/* The one use of busybox's nmeter that scripts make: `nmeter -d0 '%3t'`, the time of day with
 * milliseconds, line after line until the reader has enough. */
#include <stdio.h>
#include <time.h>

int main(void) {
  for (;;) {
    struct timespec now;
    struct tm day;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    if (printf("%02d:%02d:%02d.%03ld\n", day.tm_hour, day.tm_min, day.tm_sec,
               now.tv_nsec / 1000000) < 0 ||
        fflush(stdout))
      return 0;
  }
}
