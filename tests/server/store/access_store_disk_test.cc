// AccessStore on a disk that does not answer. fsync(2) of this program waits while `stuck`.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "server/store/access_store.h"
#include "tests/testing/fakes/fake_clock.h"
#include "tests/testing/temp_dir.h"

namespace slow_disk {
std::atomic<bool> stuck = false;
std::atomic<int> waiting = 0;
}  // namespace slow_disk

extern "C" int fsync(int fd) {
  ++slow_disk::waiting;
  while (slow_disk::stuck) usleep(1'000);
  --slow_disk::waiting;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace nsa::server {
namespace {

using ::testing::SizeIs;

v1::AccessToken Token(const std::string& name) {
  v1::AccessToken token;
  token.set_role(v1::ROLE_OPERATOR);
  token.set_name(name);
  return token;
}

TEST(AccessStoreDisk, LooksCallersUpWhileATokenIsWritten) {
  const TempDir dir;
  FakeClock clock;
  const auto store = AccessStore::Open(dir.path(), clock);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto create = [&](const std::string& name) {
    return (*store)->Create(Token(name), absl::ZeroDuration(), "hash of " + name).status();
  };
  const auto known = [&](const std::string& name) {
    const auto found = (*store)->Find("hash of " + name);
    return found.ok() && found->has_value();
  };
  ASSERT_TRUE(create("ann").ok());

  slow_disk::stuck = true;
  auto bob = std::async(std::launch::async, create, "bob");
  auto eve = std::async(std::launch::async, create, "eve");
  while (slow_disk::waiting == 0) std::this_thread::yield();
  auto found = std::async(std::launch::async, known, "ann");
  const bool answered = found.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(answered) << "a call waits for the disk";
  if (answered) {
    EXPECT_FALSE(known("bob")) << "not on the disk yet";
    EXPECT_FALSE((*store)->HasJoined("m1"));
    EXPECT_THAT((*store)->List("", 10), SizeIs(1));
  }
  slow_disk::stuck = false;
  EXPECT_TRUE(bob.get().ok());
  EXPECT_TRUE(eve.get().ok());
  EXPECT_TRUE(found.get());
  EXPECT_TRUE(known("bob") && known("eve")) << "neither write has undone the other";
  const auto again = AccessStore::Open(dir.path(), clock);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT((*again)->List("", 10), SizeIs(3));
}

}  // namespace
}  // namespace nsa::server
