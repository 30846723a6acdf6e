// A preloaded library: steps the wall clock of one process. The file that $NSA_CLOCK_SHIFT names
// has the shift in seconds (int64, little-endian), which may change at any time. The monotonic
// clock stays as it is.
//
// Reading the clock is one half. The other half is waiting until a time of the wall clock, which
// the kernel does, and it knows no shift. Such waits are made of short slices, each until the right
// time of the kernel's clock, so that a step changes waits in progress as a real one would: after a
// step forward they end early, after a step back late. What cannot be treated so aborts.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int64_t kSecond = 1'000'000'000;  // nanoseconds
constexpr int64_t kSlice = kSecond / 50;

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

// The function that is hidden by ours. Found at its first use without a lock of C++, which may wait
// by way of syscall().
template <typename Function>
class Hidden {
 public:
  constexpr Hidden(const char* name, const char* version) : name_(name), version_(version) {}

  template <typename... Arguments>
  auto operator()(Arguments... arguments) {
    Function function = function_.load();
    if (function == nullptr) {
      void* found = dlvsym(RTLD_NEXT, name_, version_);
      if (found == nullptr) found = dlsym(RTLD_NEXT, name_);
      function = reinterpret_cast<Function>(found);
      function_ = function;
    }
    return function(arguments...);
  }

 private:
  const char* const name_;
  const char* const version_;  // the newest: there are older ones of some
  std::atomic<Function> function_{nullptr};
};

constinit Hidden<int (*)(clockid_t, timespec*)> hidden_clock_gettime("clock_gettime", "GLIBC_2.17");
constinit Hidden<int (*)(timeval*, void*)> hidden_gettimeofday("gettimeofday", "GLIBC_2.2.5");
constinit Hidden<time_t (*)(time_t*)> hidden_time("time", "GLIBC_2.2.5");
constinit Hidden<int (*)(clockid_t, int, const timespec*, timespec*)> hidden_clock_nanosleep(
    "clock_nanosleep", "GLIBC_2.17");
constinit Hidden<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)> hidden_cond_timedwait(
    "pthread_cond_timedwait", "GLIBC_2.3.2");
constinit Hidden<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>
    hidden_cond_clockwait("pthread_cond_clockwait", "GLIBC_2.34");
constinit Hidden<int (*)(sem_t*, const timespec*)> hidden_sem_timedwait("sem_timedwait",
                                                                        "GLIBC_2.34");
constinit Hidden<int (*)(sem_t*, clockid_t, const timespec*)> hidden_sem_clockwait("sem_clockwait",
                                                                                   "GLIBC_2.34");
constinit Hidden<int (*)(int, int)> hidden_timerfd_create("timerfd_create", "GLIBC_2.8");
constinit Hidden<int (*)(int, int, const itimerspec*, itimerspec*)> hidden_timerfd_settime(
    "timerfd_settime", "GLIBC_2.8");
constinit Hidden<long (*)(long, long, long, long, long, long, long)> hidden_syscall("syscall",
                                                                                    "GLIBC_2.2.5");

int64_t KernelNow() {
  timespec now = {};
  hidden_clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

// Times far beyond any test are cut, so that nothing overflows.
int64_t Nanos(const timespec& time) {
  return std::clamp<int64_t>(time.tv_sec, -kSecond, 9 * kSecond) * kSecond + time.tv_nsec;
}

bool IsOver(const timespec& until) { return KernelNow() + Shift() * kSecond >= Nanos(until); }

// The end of the next slice of a wait until a time of the shifted clock, on the kernel's clock.
timespec SliceOf(const timespec& until) {
  const int64_t end = std::min(Nanos(until) - Shift() * kSecond, KernelNow() + kSlice);
  const int64_t valid = std::max<int64_t>(end, 0);
  return {.tv_sec = valid / kSecond, .tv_nsec = valid % kSecond};
}

// Repeats `wait` slice by slice until it ends otherwise than by ETIMEDOUT, or the time has come.
template <typename Wait>
int WaitInSlices(const timespec& until, Wait wait) {
  while (true) {
    const timespec slice = SliceOf(until);
    const int result = wait(&slice);
    const int error = result == -1 ? errno : result;
    if (error != ETIMEDOUT || IsOver(until)) return result;
  }
}

// Between two slices a signal to the condition would be missed, so each ends like a spurious
// wakeup, for which every caller is prepared.
template <typename Wait>
int WaitForCondition(const timespec& until, Wait wait) {
  const timespec slice = SliceOf(until);
  const int result = wait(&slice);
  return result == ETIMEDOUT && !IsOver(until) ? 0 : result;
}

// Whether pthread_cond_timedwait() of this condition waits for the wall clock.
bool IsOfWallClock(const pthread_cond_t& condition) {
  constexpr unsigned kMonotonic = 2;  // of glibc's flags
  return (condition.__data.__wrefs & kMonotonic) == 0;
}

bool IsWallClock(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

bool WaitsForWallClock(long number, long operation, long timeout) {
  const long command = operation & FUTEX_CMD_MASK;
  return number == SYS_futex && command == FUTEX_WAIT_BITSET && timeout != 0 &&
         (operation & FUTEX_CLOCK_REALTIME) != 0;
}

// Timers of the wall clock, by descriptor.
constinit std::atomic<bool> wall_timers[1 << 16] = {};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = hidden_clock_gettime(clock, now);
  if (result == 0 && IsWallClock(clock)) now->tv_sec += Shift();
  return result;
}

extern "C" int gettimeofday(timeval* now, void* zone) noexcept {
  const int result = hidden_gettimeofday(now, zone);
  if (result == 0) now->tv_sec += Shift();
  return result;
}

extern "C" time_t time(time_t* now) noexcept {
  const time_t shifted = hidden_time(nullptr) + Shift();
  if (now != nullptr) *now = shifted;
  return shifted;
}

extern "C" int clock_nanosleep(clockid_t clock, int flags, const timespec* wanted, timespec* left) {
  if (!IsWallClock(clock) || (flags & TIMER_ABSTIME) == 0) {
    return hidden_clock_nanosleep(clock, flags, wanted, left);
  }
  while (!IsOver(*wanted)) {
    const timespec slice = SliceOf(*wanted);
    const int result = hidden_clock_nanosleep(clock, flags, &slice, nullptr);
    if (result != 0) return result;
  }
  return 0;
}

extern "C" int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      const timespec* until) {
  if (!IsOfWallClock(*condition)) return hidden_cond_timedwait(condition, mutex, until);
  return WaitForCondition(*until, [&](const timespec* slice) {
    return hidden_cond_timedwait(condition, mutex, slice);
  });
}

extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  if (!IsWallClock(clock)) return hidden_cond_clockwait(condition, mutex, clock, until);
  return WaitForCondition(*until, [&](const timespec* slice) {
    return hidden_cond_clockwait(condition, mutex, clock, slice);
  });
}

extern "C" int sem_timedwait(sem_t* semaphore, const timespec* until) {
  return WaitInSlices(
      *until, [&](const timespec* slice) { return hidden_sem_timedwait(semaphore, slice); });
}

extern "C" int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* until) {
  if (!IsWallClock(clock)) return hidden_sem_clockwait(semaphore, clock, until);
  return WaitInSlices(
      *until, [&](const timespec* slice) { return hidden_sem_clockwait(semaphore, clock, slice); });
}

// Abseil waits here, and gRPC with it.
extern "C" long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (!WaitsForWallClock(number, a[1], a[3])) {
    return hidden_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  // A wake-up between two slices has changed the value, and the next slice returns at once.
  return WaitInSlices(*reinterpret_cast<const timespec*>(a[3]), [&](const timespec* slice) {
    return static_cast<int>(
        hidden_syscall(number, a[0], a[1], a[2], reinterpret_cast<long>(slice), a[4], a[5]));
  });
}

extern "C" int timerfd_create(clockid_t clock, int flags) noexcept {
  const int fd = hidden_timerfd_create(static_cast<int>(clock), flags);
  if (fd >= 0 && fd < (1 << 16)) wall_timers[fd] = IsWallClock(clock);
  return fd;
}

extern "C" int timerfd_settime(int fd, int flags, const itimerspec* value,
                               itimerspec* before) noexcept {
  if ((flags & TFD_TIMER_ABSTIME) != 0 && fd >= 0 && fd < (1 << 16) && wall_timers[fd]) {
    std::fprintf(stderr, "clock_shift: a timerfd until a time of the wall clock: not supported\n");
    std::abort();
  }
  return hidden_timerfd_settime(fd, flags, value, before);
}
