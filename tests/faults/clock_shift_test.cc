// The preloaded library that shifts the wall clock (tests/testing/fakes/clock_shift.cc) behaves
// like a machine whose clock is stepped, also for a process that waits until a time of that clock.
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/run/atomic_file.h"
#include "gtest/gtest.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

// The library must be there when the process starts: the program starts itself again with it.
class Preloaded : public ::testing::Environment {
 public:
  void SetUp() override {
    if (getenv("NSA_CLOCK_SHIFT") != nullptr) return;
    char name[] = "/tmp/nsa-clock-XXXXXX";
    const int fd = mkstemp(name);
    ASSERT_EQ(ftruncate(fd, sizeof(int64_t)), 0);
    setenv("NSA_CLOCK_SHIFT", name, 1);
    setenv("LD_PRELOAD", TestFile("clock_shift.so").c_str(), 1);
    std::vector<std::string> words =
        absl::StrSplit(ReadWholeFile("/proc/self/cmdline").value(), '\0');
    words.pop_back();  // behind the last \0
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv("/proc/self/exe", arguments.data());
    FAIL() << "execv";
  }
  void TearDown() override { unlink(getenv("NSA_CLOCK_SHIFT")); }
};
[[maybe_unused]] const ::testing::Environment* const kPreloaded =
    ::testing::AddGlobalTestEnvironment(new Preloaded);

// In place: the library has the file mapped.
void StepTo(int64_t seconds) {
  std::fstream file(getenv("NSA_CLOCK_SHIFT"), std::ios::in | std::ios::out | std::ios::binary);
  file.write(reinterpret_cast<const char*>(&seconds), sizeof seconds);
}

timespec In(absl::Duration duration) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + duration);
}

// Ways to wait until a time of the wall clock.
void ByFutex(const timespec& until) {
  int value = 0;
  syscall(SYS_futex, &value, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME, 0,
          &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

template <typename Wait>
void ByCondition(Wait wait) {
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  while (wait(&condition, &mutex) == 0) {  // spurious wakeups
  }
  pthread_mutex_unlock(&mutex);
}
void ByTimedCondition(const timespec& until) {
  ByCondition([&](pthread_cond_t* condition, pthread_mutex_t* mutex) {
    return pthread_cond_timedwait(condition, mutex, &until);
  });
}
void ByClockedCondition(const timespec& until) {
  ByCondition([&](pthread_cond_t* condition, pthread_mutex_t* mutex) {
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &until);
  });
}

void BySemaphore(const timespec& until) {
  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  sem_timedwait(&semaphore, &until);
  sem_destroy(&semaphore);
}

void BySleep(const timespec& until) {
  clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, nullptr);
}

struct Way {
  const char* name;
  void (*wait)(const timespec& until);
};

class ClockShift : public ::testing::TestWithParam<Way> {
 protected:
  ~ClockShift() override { StepTo(0); }

  struct Waited {
    absl::Duration took;
    absl::Duration stepped;  // after the beginning
  };

  // A wait during which the clock is stepped to `shift`, 0.1 s after its beginning or as soon as
  // the machine runs that thread.
  static Waited Wait(absl::Duration duration, int64_t shift) {
    const absl::Duration begin = RealClock().Monotonic();
    const timespec until = In(duration);
    Waited waited;
    std::thread stepper([&waited, begin, shift] {
      const timespec tenth = {.tv_sec = 0, .tv_nsec = 100'000'000};
      nanosleep(&tenth, nullptr);
      StepTo(shift);
      waited.stepped = RealClock().Monotonic() - begin;
    });
    GetParam().wait(until);
    waited.took = RealClock().Monotonic() - begin;
    stepper.join();
    return waited;
  }
};

TEST_P(ClockShift, AWaitTakesItsTimeWhateverTheShift) {
  for (const int64_t shift : {0, 3600, -3600}) {
    StepTo(shift);
    const absl::Duration took = Wait(absl::Milliseconds(300), shift).took;
    EXPECT_GE(took, absl::Milliseconds(299)) << shift;
    EXPECT_LT(took, absl::Seconds(30)) << shift;
  }
}

TEST_P(ClockShift, AStepForwardEndsAWait) {
  EXPECT_LT(Wait(absl::Minutes(10), 3600).took, absl::Minutes(1));
}

TEST_P(ClockShift, AStepBackProlongsAWait) {
  // On a machine with much to do, the clock may be stepped only after the wait: a longer one then.
  absl::Duration duration = absl::Milliseconds(300);
  Waited waited = Wait(duration, -2);
  while (waited.stepped >= duration) {
    ASSERT_LT(duration, absl::Minutes(1)) << "the clock was stepped after " << waited.stepped;
    StepTo(0);
    duration *= 4;
    waited = Wait(duration, -2);
  }
  EXPECT_GE(waited.took, duration + absl::Milliseconds(1999));
  EXPECT_LT(waited.took, duration + absl::Seconds(30));
}

INSTANTIATE_TEST_SUITE_P(Ways, ClockShift,
                         ::testing::Values(Way{"Futex", ByFutex},
                                           Way{"TimedCondition", ByTimedCondition},
                                           Way{"ClockedCondition", ByClockedCondition},
                                           Way{"Semaphore", BySemaphore}, Way{"Sleep", BySleep}),
                         [](const auto& way) { return way.param.name; });

TEST(ClockShiftAlone, OnlyTheWallClockIsShifted) {
  timespec wall = {};
  timespec shifted = {};
  const absl::Duration before = RealClock().Monotonic();
  clock_gettime(CLOCK_REALTIME, &wall);
  StepTo(86400);
  clock_gettime(CLOCK_REALTIME, &shifted);
  EXPECT_LT(RealClock().Monotonic() - before, absl::Hours(1));
  EXPECT_GE(shifted.tv_sec - wall.tv_sec, 86400);
  EXPECT_LT(shifted.tv_sec - wall.tv_sec, 86400 + 3600);
  EXPECT_GE(time(nullptr), shifted.tv_sec);
  StepTo(0);
}

}  // namespace
}  // namespace nsa
