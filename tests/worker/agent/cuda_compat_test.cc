#include "worker/agent/cuda_compat.h"

#include <gmock/gmock.h>

#include <fstream>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::agent {
namespace {

using ::testing::HasSubstr;

class CudaCompatTest : public ::testing::Test {
 protected:
  CudaCompatTest() {
    std::filesystem::create_directories(dir_ / "compat");
    std::ofstream(dir_ / "compat/libcuda.so.1") << "";
  }
  TempDir dir_;
  const std::vector<std::filesystem::path> usual_ = {dir_ / "absent", dir_ / "compat"};
};

TEST_F(CudaCompatTest, IsFoundWhereAnOldDriverNeedsItAndNowhereElse) {
  EXPECT_EQ(*FindCudaCompat("", "535.86.10", usual_), dir_ / "compat");
  EXPECT_EQ(*FindCudaCompat("", "580.65.06", usual_), "") << "it runs CUDA 13 by itself";
  EXPECT_EQ(*FindCudaCompat("", "", usual_), "") << "no driver";
  EXPECT_EQ(*FindCudaCompat("", "535.86.10", {}), "") << "not installed";
}

TEST_F(CudaCompatTest, TheConfigurationDecides) {
  EXPECT_EQ(*FindCudaCompat("none", "535.86.10", usual_), "");
  EXPECT_EQ(*FindCudaCompat(dir_ / "compat", "580.65.06", {}), dir_ / "compat");
  EXPECT_THAT(FindCudaCompat(dir_ / "absent", "535.86.10", usual_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("libcuda.so.1")));
  EXPECT_THAT(FindCudaCompat("compat", "535.86.10", usual_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absolute")));
}

TEST_F(CudaCompatTest, ComesFirstOnTheLibraryPath) {
  EXPECT_EQ(WithCompatFirst("/compat", "/usr/lib:/opt"), "/compat:/usr/lib:/opt");
  EXPECT_EQ(WithCompatFirst("/compat", ""), "/compat");
  EXPECT_EQ(WithCompatFirst("", "/usr/lib"), "/usr/lib");
}

}  // namespace
}  // namespace nsa::agent
