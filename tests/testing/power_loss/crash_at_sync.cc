// Preloaded into a program, kills it (SIGKILL) at one of its calls of fsync or fdatasync, so that
// it crashes exactly before or after something is on disk. $NSA_CRASH_AT_SYNC names a file whose
// content says where, e.g. "before 3" or "after 3". Calls are counted from the moment the file
// exists.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

struct Plan {
  bool armed = false;
  bool before = false;
  int calls = 0;
};

// Kills the process if the call that begins (before) or has ended is the wanted one.
void CrashIfDue(bool before) {
  static std::mutex mutex;
  static Plan plan;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!plan.armed) {
    const char* path = std::getenv("NSA_CRASH_AT_SYNC");
    FILE* file = path == nullptr ? nullptr : std::fopen(path, "re");
    if (file == nullptr) return;
    char word[8] = "";
    plan.armed = std::fscanf(file, "%7s %d", word, &plan.calls) == 2;
    plan.before = word[0] == 'b';
    std::fclose(file);
  }
  if (plan.armed && before == plan.before && --plan.calls == 0) kill(getpid(), SIGKILL);
}

int Sync(const char* name, int fd) {
  CrashIfDue(/*before=*/true);
  const auto real = reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, name));
  const int result = real(fd);
  CrashIfDue(/*before=*/false);
  return result;
}

}  // namespace

extern "C" {
int fsync(int fd) { return Sync("fsync", fd); }
int fdatasync(int fd) { return Sync("fdatasync", fd); }
}
