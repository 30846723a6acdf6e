// A preloaded library: the directory of users does not answer until the file that
// $NSA_DIRECTORY_ANSWERS names is there.
#include <dlfcn.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int getpwnam_r(const char* name, passwd* entry, char* buffer, size_t size,
                          passwd** found) {
  const char* const file = std::getenv("NSA_DIRECTORY_ANSWERS");
  while (file != nullptr && access(file, F_OK) != 0) usleep(10'000);
  using Function = int (*)(const char*, passwd*, char*, size_t, passwd**);
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getpwnam_r"))(name, entry, buffer, size,
                                                                    found);
}
