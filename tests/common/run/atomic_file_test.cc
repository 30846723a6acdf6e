#include "common/run/atomic_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

TEST(ReadWholeFileOrPipe, EndsWhereNothingElseDoes) {
  EXPECT_THAT(ReadWholeFileOrPipe("/dev/zero"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than 268435456 bytes")));
  const TempDir dir;
  std::ofstream(dir / "file") << "text";
  EXPECT_EQ(*ReadWholeFileOrPipe(dir / "file"), "text");
}

}  // namespace
}  // namespace nsa
