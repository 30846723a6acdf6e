#include "common/base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

namespace nsa {
namespace {

Fd OpenNull() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(Fd, ClosesWithItsOwner) {
  int number = -1;
  {
    const Fd fd = OpenNull();
    number = fd.get();
    EXPECT_TRUE(fd.valid());
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(Fd, NoneIsNotClosed) {
  Fd none;
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.get(), -1);
  EXPECT_TRUE(none.Close().ok());
  const Fd failed(open("/nowhere/at/all", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(failed.valid());
}

TEST(Fd, MovesItsDescriptor) {
  Fd from = OpenNull();
  const int number = from.get();
  Fd to = std::move(from);
  EXPECT_FALSE(from.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(to.get(), number);
  Fd other = OpenNull();
  const int replaced = to.get();
  to = std::move(other);
  EXPECT_NE(to.get(), replaced);
  other.Reset();
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(to.get()));
}

TEST(Fd, KeepsErrnoForTheErrorThatIsReturnedBehindIt) {
  {
    const Fd fd = OpenNull();
    errno = ENOSPC;
  }
  EXPECT_EQ(errno, ENOSPC);
}

TEST(Fd, CloseReportsAndForgets) {
  Fd fd = OpenNull();
  const int number = fd.get();
  EXPECT_TRUE(fd.Close().ok());
  EXPECT_FALSE(fd.valid());
  EXPECT_FALSE(IsOpen(number));
  Fd wrong(number);  // already closed
  EXPECT_FALSE(wrong.Close().ok());
  EXPECT_FALSE(wrong.valid());
}

}  // namespace
}  // namespace nsa
