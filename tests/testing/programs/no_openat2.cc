// Runs a program without the system call openat2: no_openat2 PROGRAM ARGUMENTS…
#include "tests/testing/no_openat2.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2 || !nsa::ForbidOpenat2(ENOSYS)) {
    std::perror("no_openat2");
    return 1;
  }
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return 1;
}
