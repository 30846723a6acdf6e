#include "common/rpc/secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReadSecretFile, RefusesFilesThatOthersCanReadAndShortSecrets) {
  const TempDir folder;
  const std::string path = (folder / "token").string();
  std::ofstream(path) << "  0123456789abcdef \nmore\n";
  chmod(path.c_str(), 0644);
  EXPECT_THAT(ReadSecretFile("token_file", path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("token_file: " + path + " has mode 0644"),
                             HasSubstr("chmod 600 " + path))));
  chmod(path.c_str(), 0600);
  EXPECT_EQ(ReadSecretFile("token_file", path).value_or(""), "0123456789abcdef");
  std::ofstream(path) << "short\n";
  EXPECT_THAT(ReadSecretFile("token_file", path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path + " has 5 bytes")));
  std::ofstream(path) << std::string(5'000, 'x');
  EXPECT_THAT(ReadSecretFile("token_file", path).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5000 bytes (at most 4096)")));
}

// Nobody is invited to write a token where one may be.
TEST(ReadSecretFile, SaysWhyAFileCannotBeRead) {
  const TempDir folder;
  EXPECT_THAT(ReadSecretFile("token_file", folder / "none").status(),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot be read (No such file or directory); correct the path")));
  EXPECT_THAT(ReadSecretFile("token_file", folder.path()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("Is a directory")));
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  std::ofstream(folder / "token") << "0123456789abcdef\n";
  chmod((folder / "token").c_str(), 0600);
  chmod(folder.path().c_str(), 0755);
  ASSERT_EQ(seteuid(65'534), 0);
  const auto read = ReadSecretFile("token_file", folder / "token");
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(read.status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("Permission denied; it belongs to root with mode 0600, and "
                                       "this process runs as nobody"),
                             Not(HasSubstr("write")))));
}

}  // namespace
}  // namespace nsa
