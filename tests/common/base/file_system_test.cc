// Network file systems are known by their numbers.
#include "common/base/file_system.h"

#include <linux/magic.h>

#include "gtest/gtest.h"

namespace nsa {
namespace {

TEST(NetworkFileSystem, IsKnownByItsNumber) {
  EXPECT_EQ(NetworkFileSystemOf(NFS_SUPER_MAGIC), "NFS");
  EXPECT_EQ(NetworkFileSystemOf(static_cast<int>(0xff534d42)), "SMB") << "as a signed number";
  EXPECT_EQ(NetworkFileSystemOf(EXT4_SUPER_MAGIC), "");
  EXPECT_EQ(NetworkFileSystemOf(TMPFS_MAGIC), "");
  EXPECT_EQ(NetworkFileSystem("/proc"), "");
  EXPECT_EQ(NetworkFileSystem("/no/such/folder"), "");
}

}  // namespace
}  // namespace nsa
