// Cores by affinity, and threads by share and environment.
#include "common/base/cores.h"

#include <sched.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace nsa {
namespace {

TEST(UsableCores, AreThoseOfTheAffinity) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(UsableCores(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(UsableCores(), 1);
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(ThreadsOfEach, ShareTheCores) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(ThreadsOfEach(1), UsableCores());
  EXPECT_EQ(ThreadsOfEach(0), UsableCores());
  EXPECT_EQ(ThreadsOfEach(UsableCores()), 1);
  EXPECT_EQ(ThreadsOfEach(1000 * UsableCores()), 1);
}

TEST(ThreadsOfEach, TheEnvironmentLowersTheirNumber) {
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_EQ(ThreadsOfEach(1), 1);
  setenv("OMP_NUM_THREADS", "1,4", 1);  // for nested loops; OpenMP 5.2, 21.1.2
  EXPECT_EQ(ThreadsOfEach(1), 1);
  setenv("OMP_NUM_THREADS", "1000000", 1);
  EXPECT_EQ(ThreadsOfEach(1), UsableCores());
  for (const char* wrong : {"", "many", "0", "-3", "99999999999999999999"}) {
    setenv("OMP_NUM_THREADS", wrong, 1);
    EXPECT_EQ(ThreadsOfEach(1), UsableCores()) << wrong;
  }
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace nsa
