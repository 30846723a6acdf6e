// A preloaded library: the program loses $NSA_LEAK_AT_SYNC bytes at each of its calls of fsync or
// fdatasync. A test that watches memory must notice.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

int Sync(const char* name, int fd) {
  static const char* const bytes = std::getenv("NSA_LEAK_AT_SYNC");
  static void* volatile lost = nullptr;
  const size_t size = bytes == nullptr ? 0 : std::strtoul(bytes, nullptr, 10);
  lost = std::malloc(size);
  if (lost != nullptr) std::memset(lost, 1, size);
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" {
int fsync(int fd) { return Sync("fsync", fd); }
int fdatasync(int fd) { return Sync("fdatasync", fd); }
}
