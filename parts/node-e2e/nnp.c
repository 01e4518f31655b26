/* Says which user it runs as; installed setuid root, so that a container which may gain privileges
 * reads 0 here. */
#include <stdio.h>
#include <unistd.h>

int main(void) { return printf("Effective uid: %u\n", (unsigned)geteuid()) < 0; }
