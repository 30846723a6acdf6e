// A preloaded library: steps the wall clock of one process. The file that $NSA_CLOCK_SHIFT names
// has the shift in seconds (int64, little-endian), which may change at any time. The monotonic
// clock stays as it is.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>

namespace {

// The mapped file, or a zero when there is none. The first caller maps it; two may, and one mapping
// stays behind.
int64_t Shift() {
  static const std::atomic<int64_t> none{0};
  static std::atomic<const std::atomic<int64_t>*> mapped{nullptr};
  const auto* shift = mapped.load();
  if (shift != nullptr) return shift->load(std::memory_order_relaxed);
  shift = &none;
  const char* path = getenv("NSA_CLOCK_SHIFT");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    void* page = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) shift = static_cast<const std::atomic<int64_t>*>(page);
    close(fd);
  }
  mapped = shift;
  return shift->load(std::memory_order_relaxed);
}

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static const auto next = Next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int result = next(clock, now);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += Shift();
  }
  return result;
}

extern "C" int gettimeofday(timeval* now, void* zone) noexcept {
  static const auto next = Next<int (*)(timeval*, void*)>("gettimeofday");
  const int result = next(now, zone);
  if (result == 0) now->tv_sec += Shift();
  return result;
}

extern "C" time_t time(time_t* now) noexcept {
  static const auto next = Next<time_t (*)(time_t*)>("time");
  const time_t shifted = next(nullptr) + Shift();
  if (now != nullptr) *now = shifted;
  return shifted;
}
